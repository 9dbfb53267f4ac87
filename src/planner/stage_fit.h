// Fits the stages of a pipeline into memory: how many blocks each of them has, and how many are recomputed.
#pragma once

#include <optional>
#include <vector>

#include "planner/prediction.h"

namespace shoal {

// Blocks of each range of a model; of these the first so many are recomputed.
struct StageCut {
  std::vector<int> blocks, recomputed;
  bool operator==(const StageCut&) const = default;
};

class StageFit {
 public:
  // `limit`: bytes of a rank.
  StageFit(const Machine& machine, double limit) : machine_(machine), limit_(limit) {}

  // The plan's cut with the fewest recomputed blocks; nullopt where it does not fit with all of them.
  std::optional<StageCut> fewest_recomputed(const RunPlan& plan) const;

  // The cut whose slowest stage is fastest, of all that fit, and of these the most even one; nullopt where
  // none fits. For plans with one range per stage.
  std::optional<StageCut> best_cut(const RunPlan& plan, const UnitSeconds& units) const;

 private:
  // Whether a stage fits with so many of its blocks recomputed, of the first ranges first; the plan has them
  // then.
  bool fits(RunPlan& plan, int stage, int recomputed) const;
  // The same with the fewest that let it fit; false where all do not suffice.
  bool recompute_fewest(RunPlan& plan, int stage) const;

  const Machine& machine_;
  double limit_;
};

// All cuts of a plan's blocks into its stages; none where there are more than `most`.
std::vector<std::vector<UnitRange>> all_cuts(const RunPlan& plan, std::size_t most);

// The blocks of each range of a plan; of one without stages, those of the model.
std::vector<int> blocks_of_ranges(const RunPlan& plan);

}  // namespace shoal
