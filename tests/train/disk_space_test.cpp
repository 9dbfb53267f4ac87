// Tests of the check that a run's checkpoints fit on its disk.
#include "train/disk_space.h"

#include <gmock/gmock.h>

#include "config/layout.h"
#include "config/plan.h"
#include "train/model_io.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using DiskSpace = TinyRuns;

TEST_F(DiskSpace, ACheckpointTakesWhatIsEstimated) {
  auto settings = config("run");
  train("run");
  resolve_layout(settings, 1);
  auto model = settings.model;
  model.vocab_size = model_of(CheckpointReader(checkpoint("run", 12))).vocab_size;
  const auto estimate = checkpoint_bytes(make_plan(settings, to_gpt_config(model)));
  const auto bytes = static_cast<double>(state("run", 12).size());
  EXPECT_GE(bytes, estimate);
  EXPECT_LT(bytes, 1.3 * estimate);  // with the names of the tensors, which count in so small a model
}

TEST_F(DiskSpace, TheMostCheckpointsAtOnce) {
  auto settings = config("run");
  settings.train.steps = 100;
  settings.checkpoint = {.interval = 10, .keep = 3, .best = true};
  EXPECT_EQ(most_checkpoints(settings), 3 + 1 + 1);
  settings.checkpoint.interval = 0;  // evaluations save, too
  settings.eval.interval = 10;
  EXPECT_EQ(most_checkpoints(settings), 3 + 1 + 1);
  settings.eval.interval = 0;
  EXPECT_EQ(most_checkpoints(settings), 1 + 1);
  settings.checkpoint = {.interval = 10, .keep = 3, .best = false};
  EXPECT_EQ(most_checkpoints(settings), 3 + 1);
  settings.checkpoint.interval = 60;  // and at the end
  EXPECT_EQ(most_checkpoints(settings), 2);
  settings.checkpoint.interval = 0;
  EXPECT_EQ(most_checkpoints(settings), 1);
}

TEST_F(DiskSpace, FilesAreCountedOnce) {
  const auto folder = folder_ / "checkpoints";
  EXPECT_EQ(bytes_in(folder), 0);
  std::filesystem::create_directories(folder / "step");
  std::ofstream(folder / "a") << "12345";
  std::ofstream(folder / "step/b") << "123";
  std::filesystem::create_directory_symlink("step", folder / "latest");
  std::filesystem::create_symlink("a", folder / "link");
  EXPECT_EQ(bytes_in(folder), 8);
}

TEST_F(DiskSpace, TooLittleIsSaidWithBothNumbers) {
  EXPECT_EQ(lack_of_space("runs/a", 400, 100, 4, 0), "");
  EXPECT_EQ(lack_of_space("runs/a", 100, 100, 4, 300), "");  // resumed: three are there
  EXPECT_THAT(lack_of_space("runs/a", 399, 100, 4, 0),
              AllOf(HasSubstr("runs/a has 399 B free"), HasSubstr("4 checkpoints of 100 B take up to 400 B"),
                    HasSubstr("checkpoint.keep")));
  EXPECT_THAT(lack_of_space("runs/a", 99, 100, 1, 0), HasSubstr("none can be saved"));
}

}  // namespace
}  // namespace shoal::test
