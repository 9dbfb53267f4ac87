// The parameters' moving average: by hand, in every layout, shown and dropped.
#include <gmock/gmock.h>

#include "ops/far_backend.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

constexpr double kDecay = 0.75;  // exact in float32, as 1 - kDecay is

RanksRun averaged_run(const MeshShape& mesh = {}, int zero = 0) {
  auto run = exact_run(AdamWConfig{}, mesh, zero);
  run.engine.ema = kDecay;
  return run;
}

std::map<std::string, std::vector<float>> parameters(DataEngine& engine) {
  std::map<std::string, std::vector<float>> found;
  for (const auto& tensor : engine.state(false, DataEngine::Share::held)) {
    const auto* values = tensor.data.as<float>();
    found[tensor.name] = {values, values + tensor.data.count()};
  }
  return found;
}

// A product and a fused or separate sum round twice: half a unit in the last place each of what is added.
TEST(MovingAverage, FollowsTheParameters) {
  const auto run = averaged_run();
  const auto self = make_self_communicator();
  RankOfRun rank(run, *self);
  auto average = parameters(rank.engine());
  double error = 0;  // relative to the largest number
  for (int step = 0; step < 5; ++step) {
    RunOutcome outcome;
    rank.step(step, outcome);
    const auto now = parameters(rank.engine());
    error = kDecay * error + gamma(3);
    rank.engine().show_average();
    const auto shown = parameters(rank.engine());
    for (auto& [name, values] : average) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double exact = kDecay * values[i] + (1 - kDecay) * now.at(name)[i];
        ASSERT_NEAR(shown.at(name)[i], exact,
                    error * (std::abs(values[i]) + std::abs(now.at(name)[i])) + 1e-30);
      }
      values = shown.at(name);
    }
    EXPECT_NE(shown, now);
    rank.engine().drop_average();
    EXPECT_EQ(parameters(rank.engine()), now);
  }
}

TEST(MovingAverage, ChangesNothingElse) {
  auto run = averaged_run();
  const auto with = train(run);
  run.engine.ema = 0;
  const auto without = train(run);
  EXPECT_EQ(with.losses, without.losses);
  for (const auto& [name, values] : without.state) EXPECT_EQ(with.state.at(name), values) << name;
}

TEST(MovingAverage, DoesNotDependOnTheLayout) {
  const auto one = train(averaged_run()).bytes();
  for (int zero = 0; zero <= 3; ++zero)
    EXPECT_TRUE(train(averaged_run({.data = 4}, zero)).bytes() == one) << "ZeRO " << zero;
  EXPECT_TRUE(train(averaged_run({.pipeline = 2, .data = 2}, 1)).bytes() == one) << "stages";
  auto run = averaged_run({.data = 2}, 2);
  run.engine.offload = testing::TempDir();
  EXPECT_TRUE(train(run).bytes() == one) << "on disk";
  run = averaged_run({.data = 2}, 3);
  run.backend = [](int) { return std::make_unique<FarBackend>(make_cpu_backend(1)); };
  run.engine.on_host = true;
  run.engine.streamed = 1024;
  EXPECT_TRUE(train(run).bytes() == one) << "far, and state on the host";
}

// An evaluation is of the average: in bfloat16 too, where products have a copy of it.
TEST(MovingAverage, IsWhatIsEvaluated) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    for (const int zero : {0, 1, 3}) {
      auto run = averaged_run({.data = 2}, zero);
      run.engine.compute = compute;
      train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
        for (int step = 0; step < 3; ++step) {
          rank.gradient(step, outcome);
          rank.engine().update();
        }
        RunOutcome own, shown, again;
        rank.evaluate(3, own);
        rank.engine().show_average();
        rank.evaluate(3, shown);
        rank.engine().drop_average();
        rank.evaluate(3, again);
        EXPECT_EQ(own.evaluations, again.evaluations);
        EXPECT_NE(own.evaluations, shown.evaluations);
      });
    }
  }
}

// Each worker has its own, and what is shown is their mean, however the workers' models are equal or not.
TEST(MovingAverage, OfWorkersIsTheMeanOfTheirs) {
  for (const int interval : {0, 2}) {
    auto run = averaged_run({.workers = 2});
    run.engine.layout_exact = false;
    run.engine.micro_batches = 2;
    run.engine.gossip = GossipOptions{.topology = make_topology("complete", 2, 1)};
    if (interval > 0) run.engine.outer = OuterOptions{.interval = interval};
    std::mutex mutex;
    std::map<std::string, std::vector<double>> sums;
    std::vector<std::map<std::string, std::vector<float>>> shown;
    train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      for (int step = 0; step < 4; ++step) rank.step(step, outcome);
      const auto own = parameters(rank.engine());
      const double distance = rank.engine().show_average();
      EXPECT_GT(distance, 0) << "the averages differ even where an exchange has made the models equal";
      const auto mean = parameters(rank.engine());
      rank.engine().drop_average();
      EXPECT_EQ(parameters(rank.engine()), own);
      const std::lock_guard lock(mutex);
      for (const auto& tensor : rank.engine().state(true, DataEngine::Share::held)) {
        constexpr std::string_view kPrefix = "optimizer.ema.";
        if (!tensor.name.starts_with(kPrefix)) continue;
        auto& sum = sums[tensor.name.substr(kPrefix.size())];
        sum.resize(static_cast<std::size_t>(tensor.data.count()));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += tensor.data.as<float>()[i];
      }
      shown.push_back(mean);
    });
    ASSERT_EQ(shown.size(), 2u);
    EXPECT_EQ(shown[0], shown[1]);
    for (const auto& [name, values] : shown[0]) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i], static_cast<float>(sums.at(name)[i]) / 2) << name;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::test
