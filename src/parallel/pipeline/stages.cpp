#include "parallel/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace shoal {
namespace {

// FLOPs that a core of a CPU does (some 100 GFLOP/s) while it moves a byte (some 10 GB/s).
constexpr double kFlopsPerByte = 10;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Costs as whole numbers, so that sums do not depend on their order and equal cuts are equal on any machine.
std::vector<std::int64_t> whole_costs(std::span<const double> costs) {
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<std::int64_t> whole;
  for (const double cost : costs) whole.push_back(std::llround(cost / total * 0x1p24));
  return whole;
}

// The ranges with the smallest total, where `add` puts a range's cost to the total of those before it. Of
// equal cuts the one whose later ranges are longer: earlier ranks hold more activations.
template <typename Add>
std::vector<UnitRange> best_cut(const std::vector<std::int64_t>& costs, int parts, Add add) {
  const int units = static_cast<int>(costs.size()), blocks = units - 2;
  std::vector<std::int64_t> before(units + 1, 0);  // cost of units [0, u)
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  // The smallest total of `part + 1` ranges that end before unit `end`, and the begin of the last of them.
  struct Best {
    std::int64_t total = kNever;
    int begin = 0;
  };
  std::vector<std::vector<Best>> best(parts, std::vector<Best>(units + 1));
  for (int part = 0; part < parts; ++part) {
    const bool last = part + 1 == parts;
    for (int end = last ? units : part + 2; end <= (last ? units : blocks - parts + part + 2); ++end) {
      auto& found = best[part][end];
      if (part == 0) found.total = add(0, before[end]);
      for (int begin = part + 1; part > 0 && begin < std::min(end, blocks + 1); ++begin) {
        const auto so_far = best[part - 1][begin].total;
        if (so_far == kNever) continue;
        const auto total = add(so_far, before[end] - before[begin]);
        if (total < found.total) found = {total, begin};
      }
    }
  }
  std::vector<UnitRange> ranges(parts);
  for (int part = parts - 1, end = units; part >= 0; --part) {
    ranges[part] = {best[part][end].begin, end};
    end = ranges[part].begin;
  }
  return ranges;
}

}  // namespace

std::vector<double> unit_costs(const GptConfig& config) {
  const double width = config.n_embd, context = config.block_size;
  const auto vocabulary = static_cast<double>(config.vocab_size);
  // Forward a row of tokens and one of positions are read and their sum is written; backward its gradient is
  // read and added to both rows: 8 times a row of float32.
  const double embedding = 8 * width * 4 * kFlopsPerByte;
  // Products with 12 C^2 parameters, and the two of attention, of which the causal half is computed.
  // Backward costs twice as much as forward.
  const double block = 3 * (24 * width * width + 4 * context * width / 2);
  const double head = 3 * 2 * vocabulary * width;
  std::vector<double> costs(config.n_layer + 2, block);
  costs.front() = embedding;
  costs.back() = head;
  return costs;
}

std::vector<UnitRange> balanced_ranges(const GptConfig& config, int parts) {
  return balanced_ranges(unit_costs(config), parts);
}

std::vector<UnitRange> balanced_ranges(std::span<const double> unit_costs, int parts) {
  const auto blocks = std::ssize(unit_costs) - 2;
  if (parts < 1 || parts > blocks) {
    fail_user("{} blocks cannot be cut into {} ranges for the pipeline; each has one block at least", blocks,
              parts);
  }
  const auto costs = whole_costs(unit_costs);
  using Cost = std::int64_t;
  const auto cut = best_cut(costs, parts, [](Cost total, Cost cost) { return std::max(total, cost); });
  Cost dearest = 0;
  for (const auto& [begin, end] : cut) {
    dearest = std::max(dearest, std::accumulate(costs.begin() + begin, costs.begin() + end, Cost{0}));
  }
  // The most even of the many cuts with this largest cost.
  return best_cut(costs, parts, [&](Cost total, Cost cost) {
    return total == kNever || cost > dearest ? kNever : total + cost * cost;
  });
}

std::vector<UnitRange> ranges_by_hand(const GptConfig& config, int parts, std::span<const int> blocks) {
  const auto sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  const bool positive = std::ranges::all_of(blocks, [](int count) { return count > 0; });
  if (std::ssize(blocks) != parts || !positive || sum != config.n_layer) {
    fail_user(
        "blocks per range of the pipeline [{}] are not {} positive number{} that add up to the {} blocks",
        fmt::join(blocks, ", "), parts, parts == 1 ? "" : "s", config.n_layer);
  }
  std::vector<UnitRange> ranges;
  int begin = 0, end = 1;
  for (const int count : blocks) {
    end += count;
    ranges.push_back({begin, end});
    begin = end;
  }
  ranges.back().end = config.n_layer + 2;
  return ranges;
}

std::string describe(const UnitRange& range, const GptConfig& config) {
  const int first = std::max(range.begin, 1), last = std::min(range.end, config.n_layer + 1) - 1;
  std::vector<std::string> parts;
  if (range.holds(0)) parts.push_back("embedding");
  if (last >= first) {
    parts.push_back(last > first ? fmt::format("block.{}-{}", first - 1, last - 1)
                                 : fmt::format("block.{}", first - 1));
  }
  if (range.holds(config.n_layer + 1)) parts.push_back("head");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace shoal
