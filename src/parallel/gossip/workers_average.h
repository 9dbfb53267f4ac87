// The mean of all workers' models, for evaluation: it takes the place of each worker's own, which meanwhile
// rests where gradients are during a step.
#pragma once

#include "parallel/data/gradient_reducer.h"
#include "parallel/data/weight_store.h"
#include "parallel/mesh.h"

namespace shoal {

class WorkersAverage {
 public:
  // All must outlive this.
  WorkersAverage(Backend& backend, StateStream& stream, Mesh& mesh, const ShardPlan& plan,
                 const ModelPart& part, WeightStore& weights, const EngineBuffers& buffers)
      : backend_(backend),
        stream_(stream),
        mesh_(mesh),
        plan_(plan),
        part_(part),
        weights_(weights),
        buffers_(buffers) {}

  // Collective over the mesh, between steps. Returns the consensus distance.
  double show(GradientReducer& reducer, std::int64_t step);
  void drop(GradientReducer& reducer);

 private:
  double distance(GradientReducer& reducer);

  Backend& backend_;
  StateStream& stream_;
  Mesh& mesh_;
  const ShardPlan& plan_;
  ModelPart part_;
  WeightStore& weights_;
  const EngineBuffers& buffers_;
};

}  // namespace shoal
