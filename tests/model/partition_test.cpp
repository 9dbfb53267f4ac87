// Shares of a model: for any number of ranks they cover the whole model.
#include "model/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "model/units.h"

namespace shoal::test {
namespace {

// f(part) for parts 0 ... parts - 1 are neighbours, in order, not empty, and cover [0, n).
void expect_to_cover(std::int64_t n, int parts, const std::function<ElementRange(int)>& f) {
  std::int64_t at = 0;
  for (int i = 0; i < parts; ++i) {
    EXPECT_EQ(f(i).begin, at) << "part " << i << " of " << parts;
    EXPECT_GT(f(i).end, at) << "part " << i << " of " << parts;
    at = f(i).end;
  }
  EXPECT_EQ(at, n) << parts << " parts";
}

TEST(EvenRanges, CoverEverythingAndDifferByOneAtMost) {
  for (const std::int64_t n : {1, 2, 5, 12, 61, 50257}) {
    for (int parts = 1; parts <= std::min<std::int64_t>(n, 9); ++parts) {
      expect_to_cover(n, parts, [&](int i) { return even_range(n, parts, i); });
      for (int i = 0; i < parts; ++i) {
        EXPECT_GE(even_range(n, parts, i).count(), n / parts);
        EXPECT_LE(even_range(n, parts, i).count(), (n + parts - 1) / parts);
      }
    }
  }
}

TEST(TensorRanks, ShareHeadsHiddenChannelsAndClasses) {
  for (const auto& config : {kUneven, kGpt2}) {
    for (int size = 1; size <= 5; ++size) {
      const auto at = [&](int rank) { return TensorRank{.rank = rank, .size = size}; };
      expect_to_cover(config.n_head, size, [&](int i) { return local_heads(config, at(i)); });
      expect_to_cover(4 * config.n_embd, size, [&](int i) { return local_hidden(config, at(i)); });
      expect_to_cover(config.vocab_size, size, [&](int i) { return local_classes(config, at(i)); });
    }
  }
}

TEST(TensorRanks, HaveWholeVectorsOfHiddenChannelsWhereTheWidthAllows) {
  for (int size = 1; size <= 7; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(local_hidden(kGpt2, {.rank = rank, .size = size}).begin % 16, 0);
    }
  }
}

TEST(ElementRanges, MeetInWhatTheyHaveInCommon) {
  EXPECT_EQ((ElementRange{2, 9} & ElementRange{5, 12}), (ElementRange{5, 9}));
  EXPECT_EQ((ElementRange{2, 9} & ElementRange{3, 4}), (ElementRange{3, 4}));
  EXPECT_EQ((ElementRange{2, 4} & ElementRange{7, 9}).count(), 0);
  EXPECT_EQ((ElementRange{7, 9} & ElementRange{2, 4}).count(), 0);
  EXPECT_EQ((ElementRange{2, 4} & ElementRange{4, 9}).count(), 0);
}

TEST(TensorGroups, AreNoLargerThanTheModelsScarcestPart) {
  const auto expect = [](const GptConfig& config, std::int64_t ranks, std::string_view part) {
    EXPECT_EQ(tensor_limit(config).ranks, ranks);
    EXPECT_EQ(tensor_limit(config).part, part);
  };
  expect(kUneven, 5, "attention heads");
  GptConfig config = kUneven;
  config.vocab_size = 3;
  expect(config, 3, "classes of the vocabulary");
  // Heads of one channel: 16 hidden channels are one vector, 24 are divided one by one.
  expect({.n_head = 4, .n_embd = 4}, 1, "pieces of the MLP's hidden channels");
  expect({.n_head = 6, .n_embd = 6}, 6, "attention heads");
}

TEST(ModelParts, HaveTheEmbeddingsMatrixWhereTheHeadIs) {
  const auto of = [](std::vector<UnitRange> chunks) { return ModelPart{{}, std::move(chunks)}; };
  const ModelPart whole, first = of({{0, 2}}), middle = of({{2, 3}}), last = of({{3, 5}}),
                         two_chunks = of({{0, 1}, {3, 4}});
  const auto units = [](const auto& has) {
    std::vector<int> found;
    for (int u = 0; u < kUneven.n_layer + 2; ++u) {
      if (has(u)) found.push_back(u);
    }
    return found;
  };
  const auto computed = [&](const ModelPart& part) { return units([&](int u) { return part.computes(u); }); };
  const auto had = [&](const ModelPart& part) { return units([&](int u) { return part.has(kUneven, u); }); };
  using testing::ElementsAre;
  EXPECT_THAT(computed(whole), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(had(whole), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(computed(first), ElementsAre(0, 1));
  EXPECT_THAT(had(first), ElementsAre(0, 1));
  EXPECT_THAT(had(middle), ElementsAre(2));
  EXPECT_THAT(computed(last), ElementsAre(3, 4));
  EXPECT_THAT(had(last), ElementsAre(0, 3, 4));
  EXPECT_THAT(had(two_chunks), ElementsAre(0, 3));
  EXPECT_THAT(whole.ranges(kUneven), ElementsAre(UnitRange{0, 5}));
  EXPECT_THAT(two_chunks.ranges(kUneven), ElementsAre(UnitRange{0, 1}, UnitRange{3, 4}));
}

}  // namespace
}  // namespace shoal::test
