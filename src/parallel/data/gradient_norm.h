// The norm of the whole model's gradient: sums of blocks, added in the order of the unit, and of units, added
// in the model's, so that it is the same bits on every rank and in every layout.
#pragma once

#include "parallel/data/gradient_reducer.h"
#include "parallel/mesh.h"

namespace shoal {

class GradientNorm {
 public:
  // `pieces` is the group of ShardPlan::in_pieces; all must outlive this.
  GradientNorm(Backend& backend, Mesh& mesh, Communicator& pieces, const ShardPlan& plan,
               const ModelPart& part, const EngineBuffers& buffers, StateStream& stream)
      : backend_(backend),
        mesh_(mesh),
        pieces_(pieces),
        plan_(plan),
        part_(part),
        buffers_(buffers),
        stream_(stream) {}

  // Collective over mesh.worker(), of what the reducer has when it has finished: its square goes to
  // buffers.squares.
  void measure(GradientReducer& reducer, std::int64_t step);

 private:
  void add_squares(const Tensor& totals, const Tensor& reduced, int unit);
  void add_units(std::int64_t blocks_here);

  Backend& backend_;
  Mesh& mesh_;
  Communicator& pieces_;
  const ShardPlan& plan_;
  ModelPart part_;
  const EngineBuffers& buffers_;  // of which all that is about squares is its own
  StateStream& stream_;
};

}  // namespace shoal
