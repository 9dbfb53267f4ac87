// Tests that training learns, compared with the known entropy of the synthetic data.
#include <cmath>
#include <map>

#include "data/dataset.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

// The lowest loss, in nats per token, of a model that sees only the last token: the conditional entropy of
// the next token, by the counts of this split, which no such model can beat on it.
double bigram_entropy(const TokenFile& split) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(split.size()));
  split.copy(0, ids);
  std::map<std::int32_t, double> first;
  std::map<std::pair<std::int32_t, std::int32_t>, double> both;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    first[ids[i - 1]] += 1;
    both[{ids[i - 1], ids[i]}] += 1;
  }
  double nats = 0;
  for (const auto& [pair, count] : both) nats -= count * std::log(count / first[pair.first]);
  return nats / static_cast<double>(ids.size() - 1);
}

class Learning : public TinyRuns {};

TEST_F(Learning, BeatsBigramsAndStaysAboveTheFloor) {
  Config given = config(
      "run", {"train.steps=300", "train.global_batch=16", "train.micro_batch=16", "model.n_embd=64",
              "model.block_size=32", "optim.lr=5e-3", "lr_schedule.warmup_steps=20",
              "lr_schedule.decay_steps=300", "eval.interval=300", "eval.batches=0", "eval.at_start=false"});
  const auto result = run_trainer(given);
  const Dataset data(given.data.dir);
  EXPECT_LT(result.val_loss, bigram_entropy(data.val()));

  // The split is drawn from p, whose loss on it is known. For any model q, the mean of q/p over all texts is
  // 1, so by Markov's inequality q's summed loss is 25 nats below p's with a probability under exp(-25).
  // Neither predicts the first token, which is worth at most log(1/p) of the rarest start, far below another
  // 10 nats.
  const double sampling_error = 35.0 / static_cast<double>(data.val().size());
  EXPECT_GT(result.val_loss, *data.split_entropy("val") - sampling_error);
}

}  // namespace
}  // namespace shoal::test
