#include "planner/stage_fit.h"

#include <algorithm>
#include <limits>

#include "parallel/pipeline/stages.h"

namespace shoal {
namespace {

constexpr double kUnfit = std::numeric_limits<double>::infinity();

// A stage of a cut: its seconds per micro-batch, and how many of its blocks are recomputed.
struct Stage {
  double seconds = kUnfit;
  int recomputed = 0;
};
using Stages = std::vector<std::vector<Stage>>;  // by number and blocks

// The cut with the smallest total, where `add` puts a stage's seconds to the total of those before it; empty
// where none has a finite one.
template <typename Add>
std::vector<int> best_blocks(const Stages& stages, int blocks, Add add) {
  const int parts = static_cast<int>(stages.size());
  struct Best {
    double total = kUnfit;
    int blocks = 0;  // of the last stage
  };
  std::vector best(stages.size() + 1, std::vector<Best>(static_cast<std::size_t>(blocks) + 1));
  best[0][0].total = 0;
  for (int part = 0; part < parts; ++part) {
    for (int end = part + 1; end <= blocks - (parts - 1 - part); ++end) {
      auto& found = best[part + 1][end];
      for (int count = 1; count <= end; ++count) {
        const double before = best[part][end - count].total, seconds = stages[part][count].seconds;
        if (before == kUnfit || seconds == kUnfit) continue;
        const double total = add(before, seconds);
        if (total < found.total) found = {total, count};
      }
    }
  }
  std::vector<int> counts(stages.size());
  if (best[parts][blocks].total == kUnfit) return {};
  for (int part = parts, end = blocks; part > 0; --part) {
    counts[part - 1] = best[part][end].blocks;
    end -= counts[part - 1];
  }
  return counts;
}

// The largest count up to `most` that `fits`; all smaller ones do, and 0 does.
template <typename Fits>
int most_that_fit(int most, Fits fits) {
  if (most == 0 || fits(most)) return most;
  int enough = 0, too_many = most;
  while (too_many - enough > 1) {
    const int middle = (enough + too_many) / 2;
    (fits(middle) ? enough : too_many) = middle;
  }
  return enough;
}

}  // namespace

std::vector<int> blocks_of_ranges(const RunPlan& plan) {
  if (plan.ranges.empty()) return {plan.model.n_layer};
  std::vector<int> blocks;
  for (const auto& range : plan.ranges) blocks.push_back(blocks_of(range, plan.model).count());
  return blocks;
}

std::vector<std::vector<UnitRange>> all_cuts(const RunPlan& plan, std::size_t most) {
  const int parts = plan.mesh.pipeline, blocks = plan.model.n_layer;
  double count = 1;  // blocks - 1 over parts - 1
  for (int i = 1; i < parts; ++i) count *= static_cast<double>(blocks - i) / i;
  if (count > static_cast<double>(most) + 0.5) return {};
  std::vector<std::vector<UnitRange>> cuts;
  std::vector<int> sizes(static_cast<std::size_t>(parts));
  const auto fill = [&](auto&& self, int part, int left) -> void {
    if (part + 1 == parts) {
      sizes.back() = left;
      cuts.push_back(ranges_by_hand(plan.model, parts, sizes));
      return;
    }
    for (int size = 1; size <= left - (parts - 1 - part); ++size) {
      sizes[static_cast<std::size_t>(part)] = size;
      self(self, part + 1, left - size);
    }
  };
  fill(fill, 0, blocks);
  return cuts;
}

bool StageFit::fits(RunPlan& plan, int stage, int recomputed) const {
  const auto blocks = blocks_of_ranges(plan);
  auto& counts = plan.pipeline.recompute_blocks;
  counts.resize(blocks.size());
  for (auto range = static_cast<std::size_t>(stage); range < blocks.size();
       range += static_cast<std::size_t>(plan.mesh.pipeline)) {
    counts[range] = std::min(recomputed, blocks[range]);
    recomputed -= counts[range];
  }
  return memory_of_stage(plan, machine_, stage) <= limit_;
}

bool StageFit::recompute_fewest(RunPlan& plan, int stage) const {
  if (fits(plan, stage, 0)) return true;
  const int all = plan.model.n_layer;
  if (plan.pipeline.recompute == Recompute::none || !fits(plan, stage, all)) return false;
  const int kept = most_that_fit(all, [&](int count) { return fits(plan, stage, all - count); });
  return fits(plan, stage, all - kept);
}

std::optional<StageCut> StageFit::fewest_recomputed(const RunPlan& given) const {
  RunPlan plan = given;
  for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
    if (!recompute_fewest(plan, stage)) return std::nullopt;
  }
  return StageCut{blocks_of_ranges(plan), plan.pipeline.recompute_blocks};
}

// A stage's memory and time depend on its number and how many blocks it has, not on which.
std::optional<StageCut> StageFit::best_cut(const RunPlan& given, const UnitSeconds& units) const {
  RunPlan plan = given;
  const int parts = plan.mesh.pipeline, blocks = plan.model.n_layer;
  Stages stages(static_cast<std::size_t>(parts), std::vector<Stage>(static_cast<std::size_t>(blocks) + 1));
  const int most = blocks - parts + 1;
  const auto fits = [&](int part, int count, int recomputed) {
    const bool first = part == 0, last = part == parts - 1;
    plan.ranges = given.ranges;
    if (!plan.ranges.empty()) {
      const int begin = last ? blocks + 1 - count : 1;
      plan.ranges[static_cast<std::size_t>(part)] = {first ? 0 : begin, begin + count + (last ? 1 : 0)};
    }
    return this->fits(plan, part, recomputed);
  };
  const auto fits_somehow = [&](int part, int count) {
    return fits(part, count, 0) || (plan.pipeline.recompute != Recompute::none && fits(part, count, count));
  };
  // Some stage has the mean number of blocks. The last one has the head; of the others each has more room
  // than the one before it, whose activations are as many or more.
  const int mean = (blocks + parts - 1) / parts;
  if (!fits_somehow(parts - 1, mean) && (parts == 1 || !fits_somehow(parts - 2, mean))) return std::nullopt;
  std::vector<int> largest(stages.size()), kept(stages.size());  // blocks; without recomputation
  int room = 0;
  for (int part = parts; part-- > 0;) {
    const bool before_last = part + 1 < parts, bounded = part + 2 < parts;
    largest[part] = most_that_fit(bounded ? largest[part + 1] : most,
                                  [&](int count) { return fits_somehow(part, count); });
    room += largest[part];
    if (before_last && room + part * largest[part] < blocks) return std::nullopt;
  }
  for (int part = parts; part-- > 0;) {
    const bool first = part == 0, last = part == parts - 1;
    kept[part] = most_that_fit(part + 2 < parts ? std::min(largest[part], kept[part + 1]) : largest[part],
                               [&](int count) { return fits(part, count, 0); });
    int recomputed = 0;  // more blocks never need less
    for (int count = 1; count <= largest[part]; ++count) {
      while (count > kept[part] && !fits(part, count, recomputed)) ++recomputed;
      stages[part][count] = {(count - recomputed) * units.block + recomputed * units.recomputed +
                                 (first ? units.embedding : 0) + (last ? units.head : 0),
                             recomputed};
    }
  }
  const auto fastest = best_blocks(stages, blocks, [](double a, double b) { return std::max(a, b); });
  if (fastest.empty()) return std::nullopt;
  double slowest = 0;
  for (int part = 0; part < parts; ++part) slowest = std::max(slowest, stages[part][fastest[part]].seconds);
  StageCut cut{best_blocks(stages, blocks,
                           [&](double total, double seconds) {
                             return seconds > slowest ? kUnfit : total + seconds * seconds;
                           }),
               {}};
  for (int part = 0; part < parts; ++part)
    cut.recomputed.push_back(stages[part][cut.blocks[part]].recomputed);
  return cut;
}

}  // namespace shoal
