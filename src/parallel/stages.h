// Where a pipeline cuts the model: ranges of neighbouring units, balanced by what they cost.
#pragma once

#include <span>
#include <vector>

#include "model/config.h"

namespace shoal {

// Units [begin, end) of the model: 0 is the embedding, n_layer + 1 the head.
struct UnitRange {
  int begin = 0, end = 0;
  bool holds(int unit) const { return unit >= begin && unit < end; }
  bool operator==(const UnitRange&) const = default;
};

// What a micro-batch costs in each unit, forward and backward, in FLOPs per token. The embedding's work is
// memory traffic; it is counted as the FLOPs that would take as long.
std::vector<double> unit_costs(const GptConfig& config);

// `parts` ranges, each with one block at least, that cut the units so that the dearest costs as little as can
// be. Throws UserError when there are more parts than blocks.
std::vector<UnitRange> balanced_ranges(const GptConfig& config, int parts);

// The ranges in which the blocks are counted by hand, the embedding with the first and the head with the
// last. Throws UserError when the counts are not `parts` positive numbers that add up to the blocks.
std::vector<UnitRange> ranges_by_hand(const GptConfig& config, int parts, std::span<const int> blocks);

}  // namespace shoal
