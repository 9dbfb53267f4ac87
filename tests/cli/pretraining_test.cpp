// The configs of pre-training on OpenWebText, by gossip and by all-reduce, as a user starts them.
#include <set>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Pretraining : public TinyRuns {
 protected:
  static std::string config(const std::string& method) {
    return (fs::path(SHOAL_SOURCE_DIR) / "configs" / ("pretrain-openwebtext-" + method + ".toml")).string();
  }
  std::vector<std::string> keys(const std::string& method) const {
    const auto result = shoal({"config", "--dump", config(method)});
    EXPECT_EQ(result.code, 0) << result.err;
    std::istringstream lines(result.out);
    std::vector<std::string> keys;
    for (std::string line; std::getline(lines, line);) {
      if (!line.empty()) keys.push_back(line);
    }
    return keys;
  }
};

TEST_F(Pretraining, TheTwinsDifferInTheMethodAlone) {
  const auto gossip = keys("gossip"), allreduce = keys("allreduce");
  ASSERT_EQ(gossip.size(), allreduce.size());
  std::set<std::string> differences;
  for (std::size_t i = 0; i < gossip.size(); ++i) {
    if (gossip[i] != allreduce[i]) differences.insert(gossip[i].substr(0, gossip[i].find(' ')));
  }
  EXPECT_THAT(differences, ElementsAre("accum_steps", "betas", "bucket_mib", "clip", "continue_from_average",
                                       "engine", "name", "topology"));
}

// A model of two layers for sixteen steps, which have two windows of accumulated gradients and eight periods
// of averaging.
TEST_F(Pretraining, BothRunOnFourRanks) {
  for (const std::string method : {"gossip", "allreduce"}) {
    const auto result = shoal(
        {"train", config(method), "--ranks", "4", "data.dir=data", "model.preset=", "model.n_layer=2",
         "model.n_head=2", "model.n_embd=16", "model.block_size=16", "train.global_batch=8", "train.steps=16",
         "train.threads=1", "optim.lr=1e-2", "lr_schedule.warmup_steps=4", "lr_schedule.warmup_start=0.25",
         "eval.interval=8", "eval.batches=4", "checkpoint.interval=8"});
    ASSERT_EQ(result.code, 0) << result.err;
    const auto run = file("runs/pretrain-openwebtext-" + method);
    EXPECT_TRUE(fs::exists(run / "checkpoints/best"));
    EXPECT_TRUE(fs::exists(run / "checkpoints/step-00000016"));
    const auto metrics = read_file(run / "metrics.jsonl");
    EXPECT_THAT(metrics, HasSubstr("\"val_loss\""));
    EXPECT_EQ(metrics.find("\"consensus_distance\"") != std::string::npos, method == "gossip");
  }
}

}  // namespace
}  // namespace shoal::test
