// The mean of all workers' models, or of their moving averages, for evaluation. It takes the place of each
// worker's own model, which is kept in the memory of gradients meanwhile.
#pragma once

#include <functional>

#include "parallel/data/gradient_norm.h"
#include "parallel/data/gradient_reducer.h"
#include "parallel/data/optimizer_state.h"
#include "parallel/data/weight_store.h"
#include "parallel/mesh.h"

namespace shoal {

struct AverageBuffers {
  static constexpr std::int64_t kChunk = 64 * ShardPlan::kBlock;
  Tensor chunk;  // f32 [kChunk], through which the distance is taken

  static AverageBuffers take(Arena& arena) { return {arena.take(DType::f32, {kChunk})}; }
};

class WorkersAverage {
 public:
  // All must outlive this. `norm` is of `plan`, and free between steps.
  WorkersAverage(Backend& backend, StateStream& stream, Mesh& mesh, const ShardPlan& plan, GradientNorm& norm,
                 WeightStore& weights, const AverageBuffers& buffers)
      : backend_(backend),
        stream_(stream),
        mesh_(mesh),
        plan_(plan),
        norm_(norm),
        weights_(weights),
        buffers_(buffers) {}

  // Collective over the mesh, between steps. Of the moving averages if given. Returns the consensus distance.
  double show(GradientReducer& reducer, std::int64_t step, const OptimizerState* averages = nullptr);

 private:
  double distance(const std::function<Tensor(int unit)>& own);

  Backend& backend_;
  StateStream& stream_;
  Mesh& mesh_;
  const ShardPlan& plan_;
  GradientNorm& norm_;
  WeightStore& weights_;
  AverageBuffers buffers_;
};

}  // namespace shoal
