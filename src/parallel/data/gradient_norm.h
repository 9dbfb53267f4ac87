// The norm of the whole model's gradient: sums of blocks, added in the order of the unit, and of units, added
// in the model's, so that it is the same bits on every rank and in every layout.
#pragma once

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

  // Measures the reduced gradient, after the reducer has finished. Collective over mesh.worker().
  void measure(GradientReducer& reducer, std::int64_t step);
  // The square of the norm, f64 [1].
  const Tensor& squares() const { return buffers_.squares; }

 private:
  void add_squares(const Tensor& totals, const Tensor& reduced, int unit);
  void add_units(std::int64_t blocks_here);

  Backend& backend_;
  Mesh& mesh_;
  Communicator& pieces_;
  const ShardPlan& plan_;
  ModelPart part_;
  NormBuffers buffers_;
  StateStream& stream_;
};

}  // namespace shoal
