// What the rank of a pipeline's stage does in a step, with times.
#pragma once

#include <cstdint>
#include <vector>

#include "config/plan.h"
#include "parallel/pipeline/schedule.h"
#include "planner/machine.h"
#include "planner/sample_tape.h"
#include "planner/step_simulation.h"

namespace shoal {

struct PricedSample {
  RunPlan plan;
  int world = 1;    // ranks of the plans that it is a sample of
  SampleTape tape;  // with prices
  SampleTimes times;
  // Sizes of the embedding, the blocks and the head: the trained elements, and the elements that the time of
  // an update is in proportion to.
  std::vector<std::int64_t> unit_sizes, updated_sizes;
  int update_ranks = 1;  // that share the elements of an update
};

// The actions of a rank of `stage`, in the order of the executor (parallel/pipeline/pipeline.cpp). `sample`
// is that of the plan, `kept` of one that recomputes nothing, for blocks that are not recomputed.
std::vector<StepAction> actions_of_stage(const RunPlan& plan, const Schedule& schedule,
                                         const PricedSample& sample, const PricedSample& kept,
                                         Machine& machine, int stage);

}  // namespace shoal
