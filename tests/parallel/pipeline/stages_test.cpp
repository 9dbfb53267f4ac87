#include "parallel/pipeline/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/error.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const GptConfig kGpt2;  // 124M

std::vector<int> blocks_of(const GptConfig& config, const std::vector<UnitRange>& ranges) {
  std::vector<int> blocks;
  for (const auto& [begin, end] : ranges) {
    blocks.push_back(std::min(end, config.n_layer + 1) - std::max(begin, 1));
  }
  return blocks;
}

double dearest(const GptConfig& config, const std::vector<UnitRange>& ranges) {
  const auto costs = unit_costs(config);
  double most = 0;
  for (const auto& [begin, end] : ranges) {
    most = std::max(most, std::accumulate(costs.begin() + begin, costs.begin() + end, 0.0));
  }
  return most;
}

// All ways to write `blocks` as a sum of `parts` positive numbers.
void for_each_cut(int blocks, int parts, std::vector<int>& cut,
                  const std::function<void(const std::vector<int>&)>& visit) {
  if (parts == 1) {
    cut.push_back(blocks);
    visit(cut);
    cut.pop_back();
    return;
  }
  for (int first = 1; first <= blocks - parts + 1; ++first) {
    cut.push_back(first);
    for_each_cut(blocks - first, parts - 1, cut, visit);
    cut.pop_back();
  }
}

TEST(Stages, CostsAreThoseOfTheProducts) {
  const auto costs = unit_costs(kGpt2);
  ASSERT_EQ(costs.size(), 14u);
  const double c = 768, t = 1024, v = 50257;
  for (int block = 1; block <= 12; ++block) EXPECT_EQ(costs[block], 72 * c * c + 6 * t * c);
  EXPECT_EQ(costs.back(), 6 * v * c);
  EXPECT_GT(costs.front(), 0);
  EXPECT_LT(costs.front(), costs[1] / 100) << "looking up rows is nearly nothing";
}

TEST(Stages, TheHeadsRankHasFewerBlocks) {
  // The head costs as much as 4.9 blocks.
  EXPECT_THAT(blocks_of(kGpt2, balanced_ranges(kGpt2, 1)), ElementsAre(12));
  EXPECT_THAT(blocks_of(kGpt2, balanced_ranges(kGpt2, 2)), ElementsAre(8, 4));
  EXPECT_THAT(blocks_of(kGpt2, balanced_ranges(kGpt2, 4)), ElementsAre(3, 4, 4, 1));
  EXPECT_THAT(blocks_of(kGpt2, balanced_ranges(kGpt2, 12)), testing::Each(1));
}

TEST(Stages, ASmallVocabularyIsCutEvenly) {
  GptConfig config{.n_layer = 8, .n_embd = 128, .block_size = 64, .vocab_size = 65};
  EXPECT_THAT(blocks_of(config, balanced_ranges(config, 2)), ElementsAre(4, 4));
  EXPECT_THAT(blocks_of(config, balanced_ranges(config, 4)), ElementsAre(2, 2, 2, 2));
  // Even shares, with fewer blocks on the earlier ranks, which keep more activations.
  config.n_layer = 9;
  EXPECT_THAT(blocks_of(config, balanced_ranges(config, 4)), ElementsAre(2, 2, 3, 2));
}

TEST(Stages, NoCutIsCheaperThanTheBalancedOne) {
  for (const std::int64_t vocabulary : {65, 5000, 50257}) {
    for (int layers = 1; layers <= 9; ++layers) {
      for (int parts = 1; parts <= layers; ++parts) {
        const GptConfig config{.n_layer = layers, .n_embd = 384, .block_size = 256, .vocab_size = vocabulary};
        const auto ranges = balanced_ranges(config, parts);
        EXPECT_EQ(ranges, ranges_by_hand(config, parts, blocks_of(config, ranges)));
        double least = std::numeric_limits<double>::infinity();
        std::vector<int> cut;
        for_each_cut(layers, parts, cut, [&](const std::vector<int>& blocks) {
          least = std::min(least, dearest(config, ranges_by_hand(config, parts, blocks)));
        });
        // The cut is found with costs that are rounded by at most 2^-25 of their sum. A range has at most 11
        // units, two ranges are compared, and the dearest is a ninth of the sum at least.
        EXPECT_LE(dearest(config, ranges), least * (1 + 2 * 11 * 9 * 0x1p-25)) << layers << " into " << parts;
      }
    }
  }
}

TEST(Stages, RangesTileTheUnits) {
  for (int parts = 1; parts <= 12; ++parts) {
    const auto ranges = balanced_ranges(kGpt2, parts);
    ASSERT_EQ(ranges.size(), static_cast<std::size_t>(parts));
    EXPECT_EQ(ranges.front().begin, 0);
    EXPECT_EQ(ranges.back().end, 14);
    for (int i = 1; i < parts; ++i) EXPECT_EQ(ranges[i - 1].end, ranges[i].begin);
    EXPECT_THAT(blocks_of(kGpt2, ranges), testing::Each(testing::Ge(1)));
  }
  EXPECT_TRUE(balanced_ranges(kGpt2, 2)[1].holds(13));
  EXPECT_FALSE(balanced_ranges(kGpt2, 2)[0].holds(13));
}

TEST(Stages, ByHand) {
  EXPECT_THAT(ranges_by_hand(kGpt2, 3, std::vector{5, 4, 3}),
              ElementsAre(UnitRange{0, 6}, UnitRange{6, 10}, UnitRange{10, 14}));
  EXPECT_THAT(ranges_by_hand(kGpt2, 1, std::vector{12}), ElementsAre(UnitRange{0, 14}));
}

TEST(Stages, RefusesWhatCannotBeCut) {
  const auto refused = [](const char* words) { return ThrowsMessage<UserError>(HasSubstr(words)); };
  EXPECT_THAT([] { balanced_ranges(kGpt2, 13); }, refused("12 blocks cannot be cut into 13"));
  EXPECT_THAT([] { balanced_ranges(kGpt2, 0); }, refused("into 0"));
  EXPECT_THAT([] { ranges_by_hand(kGpt2, 2, std::vector{6, 5}); }, refused("[6, 5] are not 2 positive"));
  EXPECT_THAT([] { ranges_by_hand(kGpt2, 3, std::vector{6, 6}); }, refused("3 positive numbers"));
  EXPECT_THAT([] { ranges_by_hand(kGpt2, 2, std::vector{12, 0}); }, refused("positive"));
  EXPECT_THAT([] { ranges_by_hand(kGpt2, 1, std::vector<int>{}); }, refused("1 positive number that"));
}

}  // namespace
}  // namespace shoal::test
