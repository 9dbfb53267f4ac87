// One step of a run, compared with the config and the checkpoints before and after it.
#include <cmath>
#include <cstring>

#include "comm/failure.h"
#include "train/model_io.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Steps : public TinyRuns {
 protected:
  using Tensors = std::map<std::string, std::vector<float>>;

  Tensors floats(const std::string& name, std::int64_t step) const {
    Tensors result;
    for (const auto& [tensor, bytes] : tensors(name, step)) {
      auto& values = result[tensor];
      values.resize(bytes.size() / sizeof(float));
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
    return result;
  }
};

// The reference: AdamW with the step's learning rate and bias corrections for the number of updates, computed
// from the moments after the step. A matrix is decayed first, then p -= rate * (m / c1) / (sqrt(v / c2) +
// eps). The backend computes in float32, with at most ten roundings per term.
void expect_adamw(const Config& config, const std::map<std::string, std::vector<float>>& before,
                  const std::map<std::string, std::vector<float>>& after, double rate, std::int64_t updates) {
  const auto n = static_cast<double>(updates);
  const double c1 = 1 - std::pow(config.optim.betas[0], n), c2 = 1 - std::pow(config.optim.betas[1], n);
  for (const auto& [name, old] : before) {
    if (name.starts_with("optimizer.")) continue;
    const bool matrix = name.ends_with(".weight") && name.find(".ln_") == std::string::npos;
    const double keep = matrix ? 1 - rate * config.optim.weight_decay : 1;
    const auto &now = after.at(name), &m = after.at("optimizer.m." + name),
               &v = after.at("optimizer.v." + name);
    for (std::size_t i = 0; i < old.size(); ++i) {
      const double move = rate * (m[i] / c1) / (std::sqrt(v[i] / c2) + config.optim.eps);
      ASSERT_NEAR(now[i], keep * old[i] - move, 10 * 0x1p-24 * (std::abs(old[i]) + std::abs(move)))
          << name << "[" << i << "] after " << updates << " updates";
    }
  }
}

// The learning rate rises at every step; about half of the later steps are skipped. A skipped step counts for
// the learning rate, but not as an update.
TEST_F(Steps, AfterSkippedOnesAreAdamWByHand) {
  const Settings settings = {"train.steps=20",
                             "optim.lr=1e-4",
                             "train.spike_zscore=1e-9",
                             "train.spike_window=8",
                             "train.on_bad_step=skip",
                             "lr_schedule.warmup_steps=20",
                             "lr_schedule.decay_steps=30",
                             "eval.interval=0",
                             "checkpoint.interval=1"};
  train("run", settings);
  const auto given = config("run", settings);
  const auto logged = metrics("run").steps;
  ASSERT_EQ(logged.size(), 20u);
  auto before = floats("run", 1);
  std::int64_t skipped = 0, compared_after_skips = 0;
  for (std::int64_t step = 1; step <= 20; ++step) {
    const double rate = 1e-4 * static_cast<double>(step) / 21;  // nanoGPT's warmup
    EXPECT_DOUBLE_EQ(logged[static_cast<std::size_t>(step - 1)].lr, rate) << "step " << step;
    if (step == 1) continue;
    const auto after = floats("run", step);
    const auto now_skipped = train_state_of(CheckpointReader(checkpoint("run", step))).skipped_steps;
    if (now_skipped == skipped) {
      expect_adamw(given, before, after, rate, step - skipped);
      compared_after_skips += skipped > 0;
    } else {
      EXPECT_EQ(after, before) << "step " << step;
    }
    skipped = now_skipped;
    before = after;
  }
  EXPECT_GE(skipped, 2);
  EXPECT_GE(compared_after_skips, 2);
}

// Also after a resume in another process.
TEST_F(Steps, TheTimeOfARunIsThatOfItsSteps) {
  train("run", {"train.steps=5", "log.interval=1"});
  train("run", {"train.steps=7", "log.interval=1", "init.from=resume"});
  double seconds = 0;
  for (const auto& step : metrics("run").steps) seconds += step.ms_per_step / 1e3;
  EXPECT_NEAR(train_state_of(CheckpointReader(checkpoint("run", 7))).train_seconds, seconds, 1e-9 * seconds);
}

// Forwards all calls, and records whether abandon() was called.
class Watched final : public Communicator {
 public:
  Watched(Communicator& inner, std::vector<std::string>& events) : inner_(inner), events_(events) {}
  std::string_view name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Request all_reduce(const Tensor& x, ReduceOp op) override { return inner_.all_reduce(x, op); }
  Request reduce_scatter(const Tensor& out, const Tensor& x, ReduceOp op) override {
    return inner_.reduce_scatter(out, x, op);
  }
  Request all_gather(const Tensor& out, const Tensor& x) override { return inner_.all_gather(out, x); }
  Request all_to_all(const Tensor& out, const Tensor& x) override { return inner_.all_to_all(out, x); }
  Request broadcast(const Tensor& x, int root) override { return inner_.broadcast(x, root); }
  Request send(const Tensor& x, int to) override { return inner_.send(x, to); }
  Request receive(const Tensor& x, int from) override { return inner_.receive(x, from); }
  void barrier() override { inner_.barrier(); }
  void abandon() noexcept override { events_.push_back("abandoned: " + handled_failure()); }
  std::unique_ptr<Communicator> split(const SplitKeys& keys) override { return inner_.split(keys); }

 private:
  Communicator& inner_;
  std::vector<std::string>& events_;
};

// When a rank fails, its running collectives on GPUs may never end: the communicator must abort them before
// the trainer's memory is freed. Other ranks hear of the failure from it.
TEST_F(Steps, ARunThatFailsAbandonsItsCollectives) {
  const auto events_of = [&](const std::string& name, const Settings& settings) {
    std::vector<std::string> events;
    const auto self = make_self_communicator();
    Watched ranks(*self, events);
    World world{ranks, 0, 1, 1, "one process"};
    {
      Trainer trainer(config(name, settings), world);
      try {
        trainer.run();
        events.emplace_back("done");
      } catch (const Error& error) {
        events.emplace_back(error.what());
      }
    }
    return events;
  };
  EXPECT_THAT(events_of("good", {"train.steps=2"}), ElementsAre("done"));
  EXPECT_THAT(events_of("bad", {"optim.lr=1e39", "lr_schedule.warmup_steps=0"}),
              ElementsAre(AllOf(HasSubstr("abandoned: "), HasSubstr("step 2: the loss is not finite")),
                          HasSubstr("step 2: the loss is not finite")));
}

}  // namespace
}  // namespace shoal::test
