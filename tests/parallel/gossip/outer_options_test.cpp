// The turns of fragments, and the units in each.
#include "parallel/gossip/outer_options.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "model/unit.h"

namespace shoal::test {
namespace {

TEST(OuterOptions, FragmentsAreOfAboutEqualSizeAndOfWholeUnits) {
  const GptConfig model{.n_layer = 12, .n_head = 12, .n_embd = 768, .block_size = 1024, .vocab_size = 50257};
  const auto units = gpt_units(model);
  const auto fragment_of = deal_fragments(units, 4);
  std::vector<std::int64_t> sizes(4);
  for (std::size_t u = 0; u < units.size(); ++u)
    sizes[static_cast<std::size_t>(fragment_of[u])] += units[u].size;
  std::int64_t largest_unit = 0;
  for (const auto& unit : units) largest_unit = std::max(largest_unit, unit.size);
  EXPECT_EQ(std::ranges::max(sizes), largest_unit);  // the embedding's, with the head's vectors elsewhere
  EXPECT_GT(2 * std::ranges::min(sizes), largest_unit);
  EXPECT_THROW(deal_fragments(units, 15), UserError);
}

TEST(OuterOptions, EachFragmentHasItsTurnInEachInterval) {
  const OuterOptions outer{.interval = 7, .fragment_of = {0, 1, 2}};
  std::vector<std::int64_t> turns[3];
  for (std::int64_t update = -7; update <= 21; ++update) {
    if (const auto exchange = outer.exchange_after(update)) {
      EXPECT_EQ(exchange->round, std::ssize(turns[exchange->fragment]));
      turns[exchange->fragment].push_back(update);
    }
  }
  EXPECT_THAT(turns[0], testing::ElementsAre(2, 9, 16));
  EXPECT_THAT(turns[1], testing::ElementsAre(4, 11, 18));
  EXPECT_THAT(turns[2], testing::ElementsAre(7, 14, 21));
}

}  // namespace
}  // namespace shoal::test
