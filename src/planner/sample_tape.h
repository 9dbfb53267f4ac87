// The kernels and collectives of a rank's sample of a step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/machine.h"
#include "planner/step_simulation.h"

namespace shoal {

// The blocks of a tape, and the unit of calls for the hidden matrices of all of them.
inline constexpr int kTapeBlocks = 2;
inline constexpr const char* kHiddenMatrices = "hidden matrices";

struct TapeCall {
  GroupCall call;
  double seconds = 0, delay = 0;  // on a machine; not recorded
  CostTerm term = CostTerm::other;
  // Not waited for where it is made: a gradient's reduction, or the gather of the unit that comes next.
  bool queued = false;
  std::string unit;  // "embedding", "block.0", ..., kHiddenMatrices; "" for none
};

struct SampleTape {
  SampleKernels kernels;
  PerPart<std::vector<TapeCall>> calls;  // but for those of `gather`
  std::vector<TapeCall> update_calls;
  // The gather of a block's parameters, where passes make one (ZeRO 3). Which passes do depends on the number
  // of blocks (block_gathers.h).
  std::optional<TapeCall> gather;
};

// Records a plan from sample_of(), with two of its blocks.
SampleTape record_sample(RunPlan sample);

}  // namespace shoal
