// Tests of reading a run for its page, at every stage of its life.
#include "report/page/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "checkpoint/run_lock.h"
#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PageRunTest : public testing::Test {
 protected:
  PageRunTest() {
    std::string pattern = (fs::temp_directory_path() / "shoal-page-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    Config config;
    config.run.name = "a";
    config.data.dir = "data";
    config.model.vocab_size = 32;
    config.train.steps = 20;
    config.train.micro_batch = 12;
    for (const char* name : {"config.toml", "plan.toml"}) write(name, to_toml(config, true));
    write("metrics.jsonl", R"({"step":10,"loss":2.5,"tokens":100})"
                           "\n");
  }
  ~PageRunTest() override { fs::remove_all(folder_); }

  void write(const char* name, std::string_view text) const { std::ofstream(folder_ / name) << text; }
  PageRun read() const { return read_page_run({"a", folder_, folder_ / "metrics.jsonl"}); }

  fs::path folder_;
};

TEST_F(PageRunTest, IsRunningWhileAProcessHoldsItsFolder) {
  {
    const RunLock lock(folder_);
    EXPECT_EQ(read().state, RunState::running);
  }
  const auto run = read();
  EXPECT_EQ(run.state, RunState::stopped);
  EXPECT_EQ(run.last_step(), 10);
  EXPECT_EQ(run.config->train.steps, 20);
  EXPECT_THAT(run.notes, IsEmpty());
}

TEST_F(PageRunTest, IsFinishedWithItsLastStepInTheMetricsOrACheckpoint) {
  write("metrics.jsonl", R"({"step":20,"train_loss":2.5,"val_loss":2})"
                         "\n");
  EXPECT_EQ(read().state, RunState::finished);
  write("metrics.jsonl", R"({"step":18,"loss":2.5,"tokens":100})"
                         "\n");  // steps are logged in twos here
  EXPECT_EQ(read().state, RunState::stopped);
  fs::create_directories(folder_ / "checkpoints/step-00000020");
  fs::create_directory_symlink("step-00000020", folder_ / "checkpoints/latest");
  EXPECT_EQ(read().state, RunState::finished);
}

TEST_F(PageRunTest, IsFinishedWhenItStoppedEarly) {
  auto config = *read().config;
  config.eval.patience = 2;
  write("config.toml", to_toml(config));
  const auto evaluations = [&](std::initializer_list<double> losses) {
    std::string text;
    for (int step = 0; const double loss : losses)
      text += fmt::format("{{\"step\":{},\"train_loss\":1,\"val_loss\":{}}}\n", ++step, loss);
    write("metrics.jsonl", text);
  };
  evaluations({3, 2, 2.5});
  EXPECT_EQ(read().state, RunState::stopped);
  evaluations({3, 2, 2.5, 2.5});
  EXPECT_EQ(read().state, RunState::finished);
}

TEST_F(PageRunTest, MayHaveNoRecordsYet) {
  for (const char* text : {"", R"({"step":1)"}) {
    write("metrics.jsonl", text);
    EXPECT_EQ(read().last_step(), 0);
  }
  write("metrics.jsonl", "oops\n");
  EXPECT_THROW(read(), UserError);
}

TEST_F(PageRunTest, AConfigThatCannotBeReadIsANote) {
  write("config.toml", "[optim]\nlearning = 1\n");
  fs::remove(folder_ / "plan.toml");
  const auto run = read();
  EXPECT_FALSE(run.config || run.plan);
  EXPECT_EQ(run.state, RunState::ended);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("config.toml:2: unknown key optim.learning"),
                                     HasSubstr("plan.toml is not there")));
}

}  // namespace
}  // namespace shoal
