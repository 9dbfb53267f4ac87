// Tests of the recorded traffic of a rank.
#include "comm/recording.h"

#include <gmock/gmock.h>

#include "core/clock.h"
#include "core/error.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;
using testing::Pair;

Tensor nothing(std::int64_t count, DType dtype = DType::f32) { return {nullptr, dtype, {count}}; }

TEST(Recording, CountsWhatTheRankSends) {
  Recording recording(4, 1);
  auto& group = recording.ranks();
  EXPECT_EQ(group.name(), "recording");
  EXPECT_EQ(group.size(), 4);
  EXPECT_EQ(group.rank(), 1);
  group.all_reduce(nothing(100)).wait();
  group.reduce_scatter(nothing(25), nothing(100)).wait();
  group.all_gather(nothing(100, DType::bf16), nothing(25, DType::bf16)).wait();
  group.all_to_all(nothing(100), nothing(100)).wait();
  group.broadcast(nothing(100), 0).wait();
  group.broadcast(nothing(100), 2).wait();  // rank 1 is the last of the ring from 2
  group.send(nothing(10), 3).wait();
  group.receive(nothing(10), 3).wait();
  group.barrier();
  std::vector<std::int64_t> bytes;
  for (const auto& entry : recording.entries()) bytes.push_back(entry.bytes);
  EXPECT_THAT(bytes, ElementsAre(600, 300, 150, 300, 400, 0, 40, 0, 0));
  EXPECT_THAT(recording.links(),
              ElementsAre(Pair(0, 100), Pair(2, 600 + 300 + 150 + 100 + 400), Pair(3, 100 + 40)));
  EXPECT_EQ(recording.bytes(), 1790);
}

TEST(Recording, PartsShareTheLogAndKnowTheirMembers) {
  Recording recording(6, 5);
  const auto part = recording.ranks().split([](int r) { return Communicator::SplitKey{r % 2, -r}; });
  EXPECT_EQ(part->size(), 3);
  EXPECT_EQ(part->rank(), 0);  // of 5, 3, 1
  part->all_reduce(nothing(30)).wait();
  EXPECT_THAT(recording.links(), ElementsAre(Pair(3, 160)));
  EXPECT_EQ(recording.entries().front().ranks, 3);
}

TEST(Recording, SumsUpByMatter) {
  Recording recording(2, 0);
  auto& group = recording.ranks();
  for (const auto* purpose :
       {"step 1, gradients of block.0", "step 2, gradients of head", "step 2, norm", ""}) {
    group.set_purpose(purpose);
    group.all_reduce(nothing(8)).wait();
  }
  const auto totals = recording.totals();
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(totals[0].subject, "gradients");
  EXPECT_EQ(totals[0].calls, 2);
  EXPECT_EQ(totals[0].bytes, 64);
  EXPECT_EQ(totals[1].subject, "norm");
  EXPECT_EQ(totals[2].subject, "");
  recording.clear();
  EXPECT_TRUE(recording.totals().empty());
}

TEST(Recording, RefusesWhatOthersRefuse) {
  Recording recording(4, 0);
  EXPECT_THROW(recording.ranks().all_gather(nothing(9), nothing(2)), Error);
  EXPECT_THROW(recording.ranks().send(nothing(9), 0), Error);
  EXPECT_THROW(recording.ranks().all_reduce(nothing(9, DType::f16)), Error);
}

TEST(Recording, ThousandsOfRanksAreCheap) {
  const Stopwatch watch;
  Recording recording(4096, 1000);
  const auto part = recording.ranks().split([](int r) { return Communicator::SplitKey{r % 64, r}; });
  EXPECT_EQ(part->size(), 64);
  for (int i = 0; i < 10000; ++i) part->all_reduce(nothing(1000)).wait();
  EXPECT_LT(watch.seconds(), 1);
}

}  // namespace
}  // namespace shoal::test
