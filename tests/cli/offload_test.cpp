// State offloaded to disk: a run whose parameters, gradients and moments exceed its memory.
#include <fmt/format.h>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

// A control group (version 1 or 2) that limits the memory of the processes in it.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::int64_t bytes) {
    const bool second = fs::exists("/sys/fs/cgroup/cgroup.controllers");
    folder_ = fs::path(second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") /
              fmt::format("shoal-test-{}", ::getpid());
    std::error_code error;
    if (!fs::create_directory(folder_, error)) return;
    std::ofstream limit(folder_ / (second ? "memory.max" : "memory.limit_in_bytes"));
    works_ = static_cast<bool>(limit << bytes << std::flush);
  }
  ~MemoryLimit() {
    std::error_code ignored;
    fs::remove(folder_, ignored);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  explicit operator bool() const { return works_; }

  // A shell command that joins the group and then replaces itself by the program.
  std::vector<std::string> inside(const std::vector<std::string>& arguments, const fs::path& folder) const {
    std::vector<std::string> command = {
        "sh", "-c",
        fmt::format("echo $$ > {}/cgroup.procs && cd {} && exec \"$0\" \"$@\"", folder_.string(),
                    folder.string()),
        SHOAL_BINARY};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

 private:
  fs::path folder_;
  bool works_ = false;
};

class Offload : public TinyRuns {
 protected:
  // 10.7 M parameters: 171 MB of weights, gradients and moments.
  const Settings large_ = {"model.n_layer=6",     "model.n_head=6",  "model.n_embd=384",
                           "train.steps=3",       "eval.interval=3", "checkpoint.interval=2",
                           "train.micro_batch=4", "parallel.zero=3", "run.deterministic=layout"};
  Settings with(const Settings& more) const {
    auto all = large_;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(Offload, AModelLargerThanMemoryTrains) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  const MemoryLimit limit(110'000'000);
  if (!limit) GTEST_SKIP() << "no control group can be made here";

  const auto disk = with({"parallel.offload=disk", "run.name=disk"});
  MpiJob small(limit.inside(train_command(disk), folder_.path()));
  const auto result = small.wait();
  ASSERT_EQ(result.code, 0) << result.err;

  MpiJob none(limit.inside(train_command(with({"run.name=none"})), folder_.path()));
  EXPECT_NE(none.wait().code, 0) << "the limit limits nothing";

  train_well(with({"run.name=memory"}));
  const auto same = shoal({"checkpoint", "compare", "runs/disk", "runs/memory"});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
}

TEST_F(Offload, HostMemoryIsTheCpusOwn) {
  const auto result = train({"parallel.offload=host"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("offload"));
}

}  // namespace
}  // namespace shoal::test
