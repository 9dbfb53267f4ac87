// The stages of a pipeline: ranges of neighbouring units, balanced by cost.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/partition.h"

namespace shoal {

// The cost of a micro-batch in each unit, forward and backward, in FLOPs per token. The embedding's work is
// memory traffic; it is counted as the FLOPs that would take as long.
std::vector<double> unit_costs(const GptConfig& config);

// `parts` ranges, each with one block at least, that cut the units so that the dearest costs as little as can
// be, and among those are as even as can be. Throws UserError when there are more parts than blocks.
std::vector<UnitRange> balanced_ranges(const GptConfig& config, int parts);

// The same for costs of units in any measure, embedding first and head last.
std::vector<UnitRange> balanced_ranges(std::span<const double> costs, int parts);

// The ranges in which the blocks are counted by hand, the embedding with the first and the head with the
// last. Throws UserError when the counts are not `parts` positive numbers that add up to the blocks.
std::vector<UnitRange> ranges_by_hand(const GptConfig& config, int parts, std::span<const int> blocks);

// "embedding, block.0-3"
std::string describe(const UnitRange& range, const GptConfig& config);

}  // namespace shoal
