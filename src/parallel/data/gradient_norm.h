// The norm of the whole model's gradient, or of anything of its shape: sums of blocks, added in the order of
// the unit, and of units, added in the model's, so that it is the same bits on every rank and in every
// layout.
#pragma once

#include <vector>

#include "parallel/data/gradient_reducer.h"
#include "parallel/mesh.h"

namespace shoal {

// All f64.
struct NormBuffers {
  Tensor squares;            // [1], of the whole model's gradient
  Tensor block_squares;      // [blocks of this rank's pieces]
  Tensor all_block_squares;  // [blocks of all ranks' pieces]
  Tensor unit_squares;       // [units, tensor ranks]

  static NormBuffers take(Arena& arena, const ShardPlan& plan, int tensor_ranks);
};

class GradientNorm {
 public:
  // `pieces` is the group of ShardPlan::in_pieces; all must outlive this.
  GradientNorm(Backend& backend, Mesh& mesh, Communicator& pieces, const ShardPlan& plan,
               const ModelPart& part, const NormBuffers& buffers, StateStream& stream)
      : backend_(backend),
        mesh_(mesh),
        pieces_(pieces),
        plan_(plan),
        part_(part),
        buffers_(buffers),
        stream_(stream) {}

  void begin_step();
  // Adds a unit whose gradient is reduced and changes no more, once in a step: of what the backward pass has
  // just written, a part is still in a cache.
  void add(GradientReducer& reducer, int unit);
  // Measures the reduced gradient, with the units that have not been added, after the reducer has finished.
  // Collective over mesh.worker().
  void measure(GradientReducer& reducer, std::int64_t step);
  // The same in steps, for anything of the gradient's shape: begin_step(), parts of this rank's pieces that
  // begin and end with a block, and their sum.
  void add_part(int unit, const ElementRange& here, const Tensor& x);
  void sum(const std::string& purpose);
  // The square of the norm, f64 [1], which every rank of the worker has.
  const Tensor& squares() const { return buffers_.squares; }

 private:
  void add_units();
  // Blocks in one rank's part: of a unit, and of those before it.
  std::int64_t blocks_of(int unit) const { return plan_.piece_size(unit) / ShardPlan::kBlock; }
  std::int64_t first_block(int unit) const { return plan_.first(unit) / plan_.ranks() / ShardPlan::kBlock; }

  Backend& backend_;
  Mesh& mesh_;
  Communicator& pieces_;
  const ShardPlan& plan_;
  ModelPart part_;
  NormBuffers buffers_;
  StateStream& stream_;
  std::vector<bool> added_;  // units of this step
};

}  // namespace shoal
