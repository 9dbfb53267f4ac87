// A run that is stopped for longer than its ranks wait for each other, as by Ctrl-Z, and goes on.
#include <csignal>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

class Suspended : public TinyRuns {};

TEST_F(Suspended, TimeWithoutTheProcessIsNoWait) {
  Process process({"train", "tiny.toml", "--ranks", "4", "parallel.pipeline=2", "train.steps=400000",
                   "parallel.timeout=2"},
                  folder_.path());
  ASSERT_TRUE(eventually([&] {
    return process.err_so_far().find("step   100/") != std::string::npos ||
           process.err_so_far().find("step    100/") != std::string::npos;
  })) << process.err_so_far();
  for (int i = 0; i < 3; ++i) {
    process.signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));
    process.signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  process.signal(SIGTERM);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("everything is saved"));
}

}  // namespace
}  // namespace shoal::test
