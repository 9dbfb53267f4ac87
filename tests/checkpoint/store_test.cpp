#include "checkpoint/store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/compare.h"
#include "checkpoint/file_size_limit.h"
#include "checkpoint/reader.h"
#include "checkpoint/run_lock.h"
#include "core/host.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CheckpointInfo at_step(std::int64_t step) {
  return {step, "0.1.0", "", nlohmann::json::object(), nlohmann::json::object()};
}

std::vector<std::string> names(const std::vector<fs::path>& paths) {
  std::vector<std::string> result;
  for (const auto& path : paths) result.push_back(path.filename().string());
  return result;
}

// All entries of RUN/checkpoints, including hidden ones.
std::vector<std::string> everything(const CheckpointStore& store) {
  std::vector<std::string> result;
  for (const auto& entry : fs::directory_iterator(store.root()))
    result.push_back(entry.path().filename().string());
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<std::byte> load(const fs::path& directory, const TensorSlice& slice) {
  std::vector<std::byte> out(slice.bytes());
  CheckpointReader(directory).read(slice, out);
  return out;
}

TEST(Store, LatestAndBestAreRelativeLinks) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {100}, 1);
  CheckpointStore store(run.path());
  EXPECT_EQ(store.latest(), std::nullopt);
  EXPECT_EQ(store.best(), std::nullopt);
  store.save(at_step(200), std::vector{a.view()}, true);
  store.save(at_step(400), std::vector{a.view()});
  EXPECT_EQ(fs::read_symlink(store.root() / "latest"), "step-00000400");
  EXPECT_EQ(fs::read_symlink(store.root() / "best"), "step-00000200");
  EXPECT_EQ(store.latest()->filename(), "step-00000400");
  EXPECT_EQ(store.best()->filename(), "step-00000200");
  EXPECT_THAT(everything(store), ElementsAre("best", "latest", "step-00000200", "step-00000400"));
}

TEST(Store, ADifferenceThatIsNoNumberIsTheLargest) {
  const ScratchDir run;
  TestTensor a("a", DType::f32, {3}, 1), b("a", DType::f32, {3}, 1);
  const float theirs[] = {5, std::numeric_limits<float>::quiet_NaN(), 0.125}, zeros[] = {0, 0, 0};
  std::memcpy(a.data.data(), theirs, sizeof theirs);
  std::memcpy(b.data.data(), zeros, sizeof zeros);
  CheckpointStore store(run.path());
  store.save(at_step(1), std::vector{a.view()});
  store.save(at_step(2), std::vector{b.view()});
  const auto found = compare_checkpoints(store.list().at(0), store.list().at(1)).differences;
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].elements, 3);
  EXPECT_TRUE(std::isnan(found[0].largest));
}

TEST(Store, KeepsTheNewestAndTheBest) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {100}, 1);
  CheckpointStore store(run.path(), {.keep = 2});
  for (int step = 1; step <= 6; ++step) store.save(at_step(step), std::vector{a.view()}, step == 2);
  EXPECT_THAT(names(store.list()), ElementsAre("step-00000002", "step-00000005", "step-00000006"));
  store.save(at_step(7), std::vector{a.view()}, true);
  EXPECT_THAT(everything(store), ElementsAre("best", "latest", "step-00000006", "step-00000007"));
}

CheckpointInfo best_at_step(std::int64_t step) {
  auto info = at_step(step);
  info.state["best"] = true;
  return info;
}

// Programs that copy a run may leave links out.
TEST(Store, KnowsTheBestWithoutItsLink) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {100}, 1);
  CheckpointStore store(run.path(), {.keep = 1});
  for (int step = 1; step <= 3; ++step)
    store.save(step < 3 ? best_at_step(step) : at_step(step), std::vector{a.view()}, step < 3);
  fs::remove(store.root() / "best");
  fs::remove(store.root() / "latest");
  EXPECT_EQ(store.best()->filename(), "step-00000002");
  store.save(at_step(4), std::vector{a.view()});
  EXPECT_THAT(everything(store), ElementsAre("latest", "step-00000002", "step-00000004"));
}

// Others copy the folders that the links name.
TEST(Store, PutsFoldersInThePlaceOfLinksAside) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {100}, 1);
  CheckpointStore store(run.path(), {.keep = 1});
  store.save(best_at_step(1), std::vector{a.view()}, true);
  for (const char* link : {"latest", "best"}) {
    fs::remove(store.root() / link);
    fs::copy(store.root() / "step-00000001", store.root() / link);
  }
  store.save(at_step(2), std::vector{a.view()});
  EXPECT_THAT(everything(store),
              ElementsAre("best", "copy-of-latest", "latest", "step-00000001", "step-00000002"));
  EXPECT_EQ(fs::read_symlink(store.root() / "latest"), "step-00000002");
  store.save(best_at_step(3), std::vector{a.view()}, true);
  EXPECT_THAT(everything(store),
              ElementsAre("best", "copy-of-best", "copy-of-latest", "latest", "step-00000003"));
}

TEST(Store, FoldersOfOtherNamesAreTheUsers) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {100}, 1);
  CheckpointStore store(run.path(), {.keep = 1});
  store.save(at_step(1), std::vector{a.view()});
  fs::copy(*store.latest(), run / "checkpoints/step-00000001-good");
  for (int step = 2; step <= 3; ++step) store.save(at_step(step), std::vector{a.view()});
  EXPECT_THAT(names(store.list()), ElementsAre("step-00000003"));
  EXPECT_THAT(everything(store), ElementsAre("latest", "step-00000001-good", "step-00000003"));
}

TEST(Store, ASaveInTheBackgroundHoldsTheDataOfItsMoment) {
  const ScratchDir run;
  TestTensor a("a", DType::f32, {300'000}, 1), b("b", DType::bf16, {33}, 2);
  CheckpointStore store(run.path());
  for (int step = 1; step <= 3; ++step) {
    const auto a_then = a.data, b_then = b.data;
    store.save_async(at_step(step), std::vector{a.view(), b.view()});
    std::fill(a.data.begin(), a.data.end(), std::byte(step));
    std::fill(b.data.begin(), b.data.end(), std::byte(step));
    store.wait();
    EXPECT_EQ(store.take_error(), std::nullopt);
    EXPECT_EQ(load(*store.latest(), a.slice), a_then);
    EXPECT_EQ(load(*store.latest(), b.slice), b_then);
  }
}

TEST(Store, RanksOfOneCheckpointNeedNoOtherCommunication) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {8, 3}, 1);
  const auto top = box_slice("a", DType::f32, {8, 3}, 0, 0, 5),
             bottom = box_slice("a", DType::f32, {8, 3}, 0, 5, 3);
  const auto top_data = cut(a, top), bottom_data = cut(a, bottom);
  CheckpointStore first(run.path(), {.rank = 0, .world = 2});
  CheckpointStore second(run.path(), {.rank = 1, .world = 2});
  for (int step = 1; step <= 3; ++step) {
    first.save_async(at_step(step), std::vector<SliceView>{{top, top_data}});
    second.save_async(at_step(step), std::vector<SliceView>{{bottom, bottom_data}});
  }
  first.wait();
  second.wait();
  EXPECT_EQ(first.take_error(), std::nullopt);
  EXPECT_EQ(load(*first.latest(), a.slice), a.data);
  EXPECT_THAT(everything(first), ElementsAre("latest", "step-00000001", "step-00000002", "step-00000003"));
}

TEST(Store, ADiskThatFillsUpWhileWritingKeepsThePreviousCheckpoint) {
  const ScratchDir run;
  const TestTensor small("a", DType::f32, {100}, 1), large("a", DType::f32, {200'000}, 2);
  CheckpointStore store(run.path());
  store.save(at_step(1), std::vector{small.view()});
  {
    const FileSizeLimit limit(64 << 10);
    store.save_async(at_step(2), std::vector{large.view()});
    store.wait();
  }
  const auto error = store.take_error();
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(*error, AllOf(HasSubstr("step 2 was not saved"), HasSubstr(store.root().string()),
                            HasSubstr("File too large"), HasSubstr("KiB needed"), HasSubstr("free"),
                            HasSubstr("step-00000001, is untouched")));
  EXPECT_EQ(store.take_error(), std::nullopt);
  EXPECT_THAT(everything(store), ElementsAre("latest", "step-00000001"));
  EXPECT_EQ(load(*store.latest(), small.slice), small.data);

  store.save_async(at_step(3), std::vector{large.view()});  // the store remains usable
  store.wait();
  EXPECT_EQ(store.take_error(), std::nullopt);
  EXPECT_EQ(load(*store.latest(), large.slice), large.data);
}

TEST(Store, MoreThanTheDiskHoldsIsRefusedBeforeWriting) {
  const ScratchDir run;
  CheckpointStore store(run.path());
  // Address space without memory: writing it would crash the test.
  const auto bytes = fs::space(run.path()).available + (std::uintmax_t{1} << 30);
  void* nothing = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (nothing == MAP_FAILED) GTEST_SKIP() << "no address space of the size of the disk";
  const auto slice = whole_slice("a", DType::bf16, {static_cast<std::int64_t>(bytes / 2)});
  const std::vector<SliceView> views = {{slice, {static_cast<const std::byte*>(nothing), slice.bytes()}}};
  EXPECT_THAT(user_error([&] { store.save(at_step(1), views); }),
              AllOf(HasSubstr("not enough free space"), HasSubstr("iB needed"), HasSubstr("iB free"),
                    HasSubstr("no earlier one")));
  munmap(nothing, bytes);
  EXPECT_THAT(everything(store), IsEmpty());
}

TEST(Store, ADirectoryThatCannotBeWrittenIsNamed) {
  const ScratchDir scratch;
  spill(scratch / "file", "x");
  EXPECT_THAT(user_error([&] { CheckpointStore store(scratch / "file/run"); }),
              AllOf(HasSubstr("cannot create"), HasSubstr("file/run/checkpoints")));
  EXPECT_THAT(user_error([&] { RunLock lock(scratch / "file/run"); }), HasSubstr("file/run"));

  // The folder is replaced by a file during training.
  const TestTensor a("a", DType::f32, {100}, 1);
  CheckpointStore store(scratch / "run");
  fs::remove_all(store.root());
  spill(store.root(), "x");
  store.save_async(at_step(2), std::vector{a.view()});
  store.wait();
  EXPECT_THAT(store.take_error().value_or(""),
              AllOf(HasSubstr("step 2 was not saved"), HasSubstr("Not a directory")));
}

TEST(Store, OpeningTidiesUpAfterAKilledProcess) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {100}, 1);
  {
    CheckpointStore store(run.path());
    for (int step = 1; step <= 3; ++step) store.save(at_step(step), std::vector{a.view()});
  }
  const fs::path root = run / "checkpoints";
  fs::copy(root / "step-00000001", root / ".step-00000009.partial");     // killed while writing
  fs::rename(root / "step-00000001", root / ".step-00000001.removed");   // while pruning
  fs::copy(root / "step-00000002", root / ".step-00000002.replaced");    // after replacing
  fs::rename(root / "step-00000003", root / ".step-00000003.replaced");  // in the midst of replacing
  fs::create_symlink("step-00000003", root / ".best.partial");           // before it got its name
  CheckpointStore store(run.path());
  EXPECT_THAT(everything(store), ElementsAre("latest", "step-00000002", "step-00000003"));
  EXPECT_THAT(verify_checkpoint(*store.latest()), IsEmpty());
}

// Saves forever: steps from 1 up, with tensors filled with the step's number.
[[noreturn]] void save_until_killed(const fs::path& run) {
  CheckpointStore store(run, {.keep = 2});
  std::vector<std::byte> data(40'000);
  const auto slice = whole_slice("a", DType::f32, {10'000});
  const auto latest = store.latest();
  for (std::int64_t step = latest ? read_manifest(*latest).info.step + 1 : 1;; ++step) {
    std::fill(data.begin(), data.end(), static_cast<std::byte>(step));
    store.save_async(at_step(step), std::vector<SliceView>{{slice, data}}, step % 3 == 0);
  }
}

TEST(Store, WhatLatestNamesIsWholeWheneverTheProcessIsKilled) {
  // A kill waits for the end of an fsync. In memory there is no fsync, so the kill comes at any point.
  const fs::path memory = "/dev/shm";
  const ScratchDir run(access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path());
  Dice dice(5);
  std::int64_t last = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_until_killed(run.path());
    std::this_thread::sleep_for(std::chrono::microseconds(dice.between(1'000, 20'000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);

    const fs::path root = run / "checkpoints";
    for (const auto& directory : list_checkpoints(root)) ASSERT_THAT(verify_checkpoint(directory), IsEmpty());
    if (!fs::is_symlink(root / "latest")) continue;  // killed before the first was done
    const CheckpointReader reader(root / "latest");
    ASSERT_GE(reader.info().step, last);
    last = reader.info().step;
    const auto slice = whole_slice("a", DType::f32, {10'000});
    ASSERT_EQ(load(root / "latest", slice),
              std::vector<std::byte>(slice.bytes(), static_cast<std::byte>(last)));
  }
  EXPECT_GT(last, 0);
}

TEST(RunLock, ASecondProcessIsRefusedAndToldWhoHoldsIt) {
  const ScratchDir scratch;
  const fs::path run = scratch / "runs/a";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunLock lock(run);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  EXPECT_THAT(
      user_error([&] { RunLock lock(run); }),
      AllOf(HasSubstr(run.string()), HasSubstr("in use by process " + std::to_string(child) + " on ")));
  EXPECT_TRUE(run_in_use(run));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(run_in_use(run) || run_in_use(scratch / "runs/none"));
  const RunLock lock(run);  // the system releases the lock when its holder ends
  EXPECT_THAT(user_error([&] { RunLock again(run); }), HasSubstr(std::to_string(getpid())));
}

TEST(RunLock, KeepsTheSessionThatWasBegunLast) {
  const ScratchDir scratch;
  const fs::path run = scratch / "runs/a";
  {
    RunLock lock(run);
    EXPECT_EQ(lock.last_session(), "");
    lock.begin_session("a-long-name");
    EXPECT_EQ(lock.last_session(), "a-long-name");
  }
  { EXPECT_EQ(RunLock(run).last_session(), "a-long-name"); }
  EXPECT_EQ(lock_holder(run), "process " + std::to_string(getpid()) + " on " + host_name());
  { RunLock(run).begin_session("b"); }
  // Killed between writing a shorter text and cutting the file.
  std::ofstream(run / ".lock", std::ios::app) << "-long-name\n";
  EXPECT_EQ(RunLock(run).last_session(), "b");
}

TEST(RunLock, ForgetsASessionThatARankDiscarded) {
  const ScratchDir scratch;
  const fs::path run = scratch / "runs/a";
  {
    RunLock lock(run);
    lock.begin_session("a");
    discard_session(run);  // on two ranks
    discard_session(run);
  }
  { EXPECT_EQ(RunLock(run).last_session(), ""); }
  {
    RunLock next(run);
    EXPECT_EQ(next.last_session(), "");
    next.begin_session("b");
  }
  EXPECT_EQ(RunLock(run).last_session(), "b");
  discard_session(scratch / "nowhere");
}

TEST(RunLock, IsNotRefusedForSomebodyWhoLooksWhetherItIsHeld) {
  const ScratchDir scratch;
  const fs::path run = scratch / "runs/a";
  { const RunLock creates_the_file(run); }
  FileDescriptor looking(::open((run / ".lock").c_str(), O_RDONLY));
  ASSERT_EQ(::flock(looking.get(), LOCK_SH | LOCK_NB), 0);
  EXPECT_FALSE(run_in_use(run));  // another who looks
  std::thread looks_away([&] { looking = FileDescriptor(); });
  const RunLock lock(run);
  looks_away.join();
}

}  // namespace
}  // namespace shoal::test
