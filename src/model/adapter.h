// The low-rank adapters of a block's linear layers (LoRA, Hu et al. 2021): a layer's output gets scale *
// dropout(x) . A^T . B^T more. In a tensor group a rank's products are partial sums where the layer's own
// are, so that adapters need no further exchange of activations.
#pragma once

#include "model/arena.h"
#include "model/layer_context.h"

namespace shoal {

// Scratch memory that all adapters share; empty without adapters. R is the micro-batch's tokens, r the rank.
struct AdapterWork {
  Tensor sums;     // f32 [R, r]
  Tensor low;      // x [R, r]: the sums, scaled, in the compute type
  Tensor wide;     // f32 [R, widest input or output of a layer]
  Tensor dropped;  // x [R, widest input]: dropout(x) and its gradient; empty where nothing is dropped

  // `training`: with backward passes, and so with dropout.
  static AdapterWork take(Arena& arena, const GptConfig& config, std::int64_t rows, DType compute,
                          const TensorRank& tensor, bool training);
};

class Adapter {
 public:
  Adapter(const std::vector<UnitSpec>& units, const GptConfig& config, int layer);

  bool on(Linear layer) const { return unit_ >= 0 && static_cast<bool>(matrices(layer).a.shape.rank()); }

  // The weights and gradients of a pass over the block; both empty without adapters.
  struct Pass {
    const LayerContext& context;
    const BatchAddress& address;
    const AdapterWork& work;
    std::int64_t positions;  // T of the micro-batch
    UnitView weights = {}, gradients = {};
  };
  Pass begin_forward(const LayerContext& context, const BatchAddress& address, const AdapterWork& work,
                     std::int64_t positions) const;
  Pass begin_backward(const LayerContext& context, const BatchAddress& address, const AdapterWork& work,
                      std::int64_t positions) const;
  void end_forward(const Pass& pass) const;
  void end_backward(const Pass& pass) const;

  // y x [R, out], the layer's output, += the adapter's of x x [R, in].
  void forward(const Pass& pass, Linear layer, const Tensor& y, const Tensor& x) const;
  // Adds the gradients of A and B for the gradient of the output, dy x [R, out], and returns what the input's
  // gradient has to be added, f32 or x [R, in], in scratch memory; empty where the layer has no adapter.
  Tensor backward(const Pass& pass, Linear layer, const Tensor& dy, const Tensor& x) const;

 private:
  struct Matrices {
    ParameterSlice a, b;       // [r, in], [out, r]; empty where the layer has no adapter
    std::int64_t first_input;  // of this rank, in the whole layer
  };
  const Matrices& matrices(Linear layer) const { return matrices_[static_cast<std::size_t>(layer)]; }
  Dropout dropout(const Pass& pass, Linear layer) const;
  Tensor dropped(const Pass& pass, Linear layer, const Tensor& x) const;
  Tensor scaled_low(const Pass& pass, const Tensor& sums) const;

  int unit_ = -1, layer_ = 0;
  std::array<Matrices, kLinears> matrices_ = {};
};

}  // namespace shoal
