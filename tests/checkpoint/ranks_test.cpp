// Checkpoints of several ranks: ranks that fail or are slow, and files left by earlier attempts.
#include <thread>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/file_size_limit.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "core/clock.h"
#include "core/file.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A limit on files is a full disk for the rank whose shard is larger.
constexpr std::int64_t kLarge = 100'000, kSmall = 100;  // 400 kB and 400 bytes
constexpr rlim_t kLimit = 64 << 10;

// Tensor "a" of rank 0 and tensor "b" of rank 1.
class Ranks : public ::testing::Test {
 protected:
  Ranks(std::int64_t a, std::int64_t b) : a_("a", DType::f32, {a}, 1), b_("b", DType::f32, {b}, 2) {}

  static CheckpointInfo at_step(std::int64_t step) {
    return {step, "0.1.0", "", nlohmann::json::object(), nlohmann::json::object()};
  }
  void begin(int rank, std::int64_t step) {
    store(rank).save_async(at_step(step), std::vector{rank == 0 ? a_.view() : b_.view()});
  }
  CheckpointStore& store(int rank) { return rank == 0 ? first_ : second_; }
  std::string error(int rank) {
    store(rank).wait();
    return store(rank).take_error().value_or("");
  }
  // The error of a commit where one rank found no room for its shard, nor for a file that says so.
  std::string error_without_room(int failed) const {
    CheckpointWriter writer(run_ / "checkpoints", 5, "attempt");
    writer.write_shard(1 - failed, 2, std::vector{failed == 1 ? a_.view() : b_.view()});
    {
      const FileSizeLimit limit(0);
      writer.report_failure(failed, 2, "the disk is full");
    }
    try {
      writer.commit(at_step(5), 2);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::vector<std::string> everything() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run_ / "checkpoints"))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void expect_whole(std::int64_t step) {
    ASSERT_EQ(first_.latest()->filename(), step_directory_name(step));
    EXPECT_THAT(verify_checkpoint(*first_.latest()), IsEmpty());
    for (const auto* tensor : {&a_, &b_}) {
      std::vector<std::byte> data(tensor->data.size());
      CheckpointReader(*first_.latest()).read(tensor->slice, data);
      EXPECT_EQ(data, tensor->data);
    }
  }

  ScratchDir run_;
  TestTensor a_, b_;
  CheckpointStore first_{run_.path(), {.rank = 0, .world = 2}};
  CheckpointStore second_{run_.path(), {.rank = 1, .world = 2}};
};

class SecondRankFails : public Ranks {
 protected:
  SecondRankFails() : Ranks(kSmall, kLarge) {}
};

TEST_F(SecondRankFails, IsToldByTheFirstAndLeavesNothing) {
  {
    const FileSizeLimit limit(kLimit);
    begin(0, 5);
    begin(1, 5);
    EXPECT_THAT(error(0),
                AllOf(HasSubstr("step 5 was not saved"), HasSubstr("rank 1 could not save its shard: "),
                      HasSubstr("File too large"), HasSubstr("There is no earlier one")));
    EXPECT_THAT(error(1), HasSubstr("File too large"));
  }
  EXPECT_THAT(everything(), IsEmpty());

  // Saving the same step again works after the failure.
  begin(1, 5);
  begin(0, 5);
  EXPECT_EQ(error(0) + error(1), "");
  expect_whole(5);
}

TEST_F(SecondRankFails, WithoutAnyRoomForItsReason) {
  EXPECT_THAT(error_without_room(1), HasSubstr("rank 1 could not save its shard, and not write down why"));
}

class FirstRankFails : public Ranks {
 protected:
  FirstRankFails() : Ranks(kLarge, kSmall) {}
};

// Rank 0 removes the files only after the slower rank has ended.
TEST_F(FirstRankFails, WaitsForTheSlowerRank) {
  {
    const FileSizeLimit limit(kLimit);
    begin(0, 5);
    EXPECT_FALSE(first_.wait_for(std::chrono::milliseconds(100)));
    begin(1, 5);
    EXPECT_THAT(error(0), AllOf(HasSubstr("rank 0 could not save its shard: "), HasSubstr("File too large")));
    EXPECT_EQ(error(1), "");
  }
  EXPECT_THAT(everything(), IsEmpty());
  begin(0, 6);
  begin(1, 6);
  EXPECT_EQ(error(0) + error(1), "");
  expect_whole(6);
}

TEST_F(FirstRankFails, WithoutAnyRoomForItsReason) {
  EXPECT_THAT(error_without_room(0), HasSubstr("rank 0 could not save its shard: the disk is full"));
}

class Attempts : public Ranks {
 protected:
  Attempts() : Ranks(kSmall, kSmall) {}

  // Until rank 0 has written its shard and waits for rank 1.
  void begin_first() {
    begin(0, 5);
    const auto record = run_ / "checkpoints/.step-00000005.0-1.partial/rank-00000.json";
    while (!fs::exists(record)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

// A rank of a killed run, perhaps on another host, that has not noticed yet; and one whose earlier save
// failed.
TEST_F(Attempts, AreNeverMixed) {
  const TestTensor stale("b", DType::f32, {kSmall}, 3);
  CheckpointWriter zombie(run_ / "checkpoints", 5, "another session-1");
  zombie.write_shard(1, 2, std::vector{stale.view()});
  zombie.report_failure(0, 2, "killed");
  begin(0, 5);
  EXPECT_FALSE(first_.wait_for(std::chrono::milliseconds(100)));  // the existing shard is of another run
  begin(1, 5);
  EXPECT_EQ(error(0) + error(1), "");
  expect_whole(5);

  EXPECT_THAT(everything(), ElementsAre(HasSubstr("another session"), "latest", "step-00000005"));
  const CheckpointStore next(run_.path(), {.rank = 0, .world = 1});  // as the next start does
  EXPECT_THAT(everything(), ElementsAre("latest", "step-00000005"));
}

TEST_F(Attempts, EndSoonWhenTheOthersAreGivenUp) {
  begin_first();
  const Stopwatch watch;
  first_.give_up();
  EXPECT_THAT(error(0), HasSubstr("rank 1 did not save its shard"));
  EXPECT_LT(watch.seconds(), 10);
  EXPECT_THAT(everything(), IsEmpty());
}

// In one step, so that rank 0 meets the same error whether it waits already or still reads its own record.
TEST_F(Attempts, EndSoonWhenTheirFolderIsReplacedByAFile) {
  const auto file = run_ / "file";
  write_text(file, "a file");
  begin_first();
  const Stopwatch watch;
  if (!swap_names(run_ / "checkpoints", file)) {
    first_.give_up();
    GTEST_SKIP() << "this file system cannot exchange names";
  }
  EXPECT_THAT(error(0), AllOf(HasSubstr("step 5 was not saved"), HasSubstr("Not a directory")));
  EXPECT_LT(watch.seconds(), 10);
}

}  // namespace
}  // namespace shoal::test
