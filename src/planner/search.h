// Searches the layouts of a config for the one with the shortest step that fits the memory.
#pragma once

#include <string>
#include <vector>

#include "planner/ranked_plan.h"

namespace shoal {

struct SearchResult {
  static constexpr int kListed = 10;
  // The tried ones, by the times of trials and predictions together (trials.h), then the others by predicted
  // time; at least the kListed fastest.
  std::vector<RankedPlan> plans;
  int considered = 0;  // layouts that exist
  int too_large = 0;   // of these: do not fit the memory
  int pruned = 0;  // of these: not predicted, since they cannot be among the fastest, or do not promise to be
  int unmeasured = 0;                  // of these: not predicted, since the time for measuring was up
  bool plain_data_left_out = false;    // data ranks alone were among the layouts that are not predicted
  std::optional<RankedPlan> smallest;  // of those that do not fit, the one that needs least memory
  double limit = 0;                    // bytes of a rank
};

// Layouts of `ranks` ranks. Keys that the config's file or arguments give are constraints; the global batch
// never changes. The limit of a rank's memory is plan.memory_gib, or the machine's. Throws UserError when no
// layout satisfies the constraints. The model's vocabulary must be known. Equal inputs give equal results.
SearchResult search_plans(const Config& config, int ranks, Machine& machine);

// Whether a plan has data ranks alone, without sharding.
bool is_plain_data(const RunPlan& plan);

// The keys of the layout, as arguments: "parallel.tensor=2 train.micro_batch=4".
std::string layout_arguments(const Config& config);

}  // namespace shoal
