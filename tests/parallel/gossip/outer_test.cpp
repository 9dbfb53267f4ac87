// The outer optimizer compared with the algorithm written by hand around workers that know nothing of each
// other: the same bytes, in every layout.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "ops/far_backend.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

RanksRun outer_run(int workers, const std::string& topology, const OuterOptions& outer = {.interval = 3}) {
  RanksRun run;
  run.mesh.workers = workers;
  run.engine.grad_clip = 0.1;
  run.engine.micro_batches = 2;
  run.engine.outer = outer;
  if (workers > 1) run.engine.gossip = GossipOptions{.topology = make_topology(topology, workers, 1)};
  return run;
}

// A worker, alone, and what stands around it.
class WorkerAlone {
 public:
  WorkerAlone(const RanksRun& run, int worker)
      : run_(alone(run)), rank_(run_, *self_, {worker, run.mesh.workers}) {
    for (const auto& tensor : rank_.engine().state(false, DataEngine::Share::held)) {
      const auto* values = tensor.data.as<float>();
      weights_[tensor.name] = tensor.data;
      model_[tensor.name] = {values, values + tensor.data.count()};
      momentum_[tensor.name].resize(model_[tensor.name].size());
    }
  }

  void step(int step) { rank_.step(step, outcome_); }
  std::map<std::string, std::vector<float>> movement() const {
    auto moved = model_;
    for (auto& [name, values] : moved) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] -= weights_.at(name).as<float>()[i];
    }
    return moved;
  }
  // The movement is the mean of the group's.
  void move(const OuterOptions& outer, const std::string& name, std::size_t i, float movement) {
    const auto mu = static_cast<float>(outer.momentum), rate = static_cast<float>(outer.lr);
    float &model = model_[name][i], &m = momentum_[name][i];
    const float decayed = mu * m;
    m = decayed + movement;
    const float ahead = mu * m, by = outer.nesterov ? movement + ahead : m, change = -rate * by;
    model += change;
    weights_[name].as<float>()[i] = model;
  }
  void moved() { rank_.engine().state_loaded(); }

  RunOutcome finish() {
    collect(outcome_, rank_.engine(), rank_.backend());
    for (const auto& [name, values] : model_) outcome_.state["optimizer.outer." + name] = values;
    for (const auto& [name, values] : momentum_) outcome_.state["optimizer.outer_m." + name] = values;
    return outcome_;
  }

 private:
  static RanksRun alone(RanksRun run) {
    run.mesh = {};
    run.engine.gossip.reset();
    run.engine.outer.reset();
    return run;
  }

  RanksRun run_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  RankOfRun rank_;
  RunOutcome outcome_;
  std::map<std::string, Tensor> weights_;
  std::map<std::string, std::vector<float>> model_, momentum_;
};

std::vector<RunOutcome> outer_by_hand(const RanksRun& run) {
  const auto& outer = *run.engine.outer;
  std::vector<std::unique_ptr<WorkerAlone>> workers;
  for (int w = 0; w < run.mesh.workers; ++w) workers.push_back(std::make_unique<WorkerAlone>(run, w));
  const auto rounds =
      run.engine.gossip ? run.engine.gossip->topology.rounds : std::vector<Topology::Round>{{{0}}};
  for (int step = 0; step < run.steps; ++step) {
    for (auto& worker : workers) worker->step(step);
    if ((step + 1) % outer.interval != 0) continue;
    const auto round = static_cast<std::size_t>((step + 1) / outer.interval - 1) % rounds.size();
    for (const auto& group : rounds[round]) {
      std::vector<std::map<std::string, std::vector<float>>> movements;
      for (const int worker : group)
        movements.push_back(workers[static_cast<std::size_t>(worker)]->movement());
      for (const auto& [name, first] : movements.front()) {
        for (std::size_t i = 0; i < first.size(); ++i) {
          float sum = first[i];
          for (std::size_t m = 1; m < movements.size(); ++m) sum += movements[m].at(name)[i];
          if (group.size() > 1) sum *= 1.0f / static_cast<float>(group.size());
          for (const int worker : group) workers[static_cast<std::size_t>(worker)]->move(outer, name, i, sum);
        }
      }
    }
    for (auto& worker : workers) worker->moved();
  }
  std::vector<RunOutcome> outcomes;
  for (auto& worker : workers) outcomes.push_back(worker->finish());
  return outcomes;
}

void expect_outcomes(const RanksRun& run, const std::vector<RunOutcome>& expected) {
  const auto outcomes = train_workers(run);
  ASSERT_EQ(outcomes.size(), expected.size());
  for (std::size_t w = 0; w < outcomes.size(); ++w) {
    EXPECT_EQ(outcomes[w].losses, expected[w].losses) << "worker " << w;
    EXPECT_EQ(outcomes[w].state, expected[w].state) << "worker " << w;
  }
}

// Evaluation is of the mean, which the hand has not: never.
RanksRun unevaluated(RanksRun run) {
  run.evaluate_every = 1000;
  return run;
}

TEST(Outer, IsTheAlgorithmByHand) {
  for (const auto& outer :
       {OuterOptions{.interval = 3}, OuterOptions{.interval = 2, .lr = 1, .momentum = 0.5, .nesterov = false},
        OuterOptions{.interval = 1, .lr = 0.3, .momentum = 0}}) {
    for (const auto& [workers, topology] :
         {std::pair(1, "none"), std::pair(2, "complete"), std::pair(3, "complete"), std::pair(4, "exp"),
          std::pair(4, "ring")}) {
      SCOPED_TRACE(fmt::format("every {}, {} workers, {}", outer.interval, workers, topology));
      const auto run = unevaluated(outer_run(workers, topology, outer));
      expect_outcomes(run, outer_by_hand(run));
    }
  }
}

TEST(Outer, DoesNotDependOnTheLayoutOfWorkers) {
  auto run = unevaluated(outer_run(2, "complete"));
  run.engine.layout_exact = true;
  run.engine.micro_batches = 4;
  const auto expected = outer_by_hand(run);
  for (const int data : {2, 4}) {
    for (int zero = 0; zero <= 3; ++zero) {
      SCOPED_TRACE(fmt::format("{} ranks, ZeRO {}", data, zero));
      run.mesh.data = data;
      run.engine.zero = zero;
      expect_outcomes(run, expected);
    }
  }
  run.mesh = {.pipeline = 2, .data = 2, .workers = 2};
  expect_outcomes(run, expected);
  run.mesh = {.data = 2, .workers = 2};
  run.engine.zero = 2;
  run.backend = [](int) { return std::make_unique<FarBackend>(make_cpu_backend(1)); };
  run.engine.on_host = true;
  run.engine.streamed = 1024;
  expect_outcomes(run, expected);
}

TEST(Outer, GoesAroundMuonAndBfloat16) {
  auto run = unevaluated(outer_run(2, "complete"));
  run.engine.optimizer = MuonConfig{};
  run.engine.compute = DType::bf16;
  const auto expected = outer_by_hand(run);
  expect_outcomes(run, expected);
  run.mesh.data = 2;
  run.engine.zero = 1;
  run.engine.layout_exact = true;
  auto alone = run;
  alone.mesh.data = 1;
  alone.engine.zero = 0;
  expect_outcomes(run, outer_by_hand(alone));
}

TEST(Outer, ShowsTheMeanOnlyWhereWorkersDiffer) {
  const auto run = outer_run(2, "complete");
  train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    for (int step = 0; step < 7; ++step) {
      rank.gradient(step, outcome);
      rank.engine().update();
      const double distance = rank.engine().show_average();
      EXPECT_EQ(distance == 0, (step + 1) % 3 == 0) << step;
      rank.engine().drop_average();
    }
  });
}

TEST(Outer, ResumesInsideAnInterval) {
  for (const int data : {1, 2}) {
    auto run = unevaluated(outer_run(2, "complete"));
    run.mesh.data = data;
    run.engine.zero = data - 1;
    const auto whole = train_workers(run);
    const auto parts = train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      for (int step = 0; step < 4; ++step) rank.step(step, outcome);
      std::map<std::string, std::vector<float>> saved;
      const auto key = [](const StateTensor& t) { return fmt::format("{} {}", t.name, t.first); };
      for (const auto& t : rank.engine().state(true, DataEngine::Share::held))
        saved[key(t)] = {t.data.as<float>(), t.data.as<float>() + t.data.count()};
      rank.engine().initialize(99);
      for (const auto& t : rank.engine().state(true, DataEngine::Share::held))
        std::ranges::copy(saved.at(key(t)), t.data.as<float>());
      rank.engine().state_loaded();
      for (int step = 4; step < run.steps; ++step) rank.step(step, outcome);
    });
    for (std::size_t w = 0; w < whole.size(); ++w) EXPECT_TRUE(parts[w].bytes() == whole[w].bytes());
  }
}

// New parameters, without the optimizer's state: the next movement counts from them.
TEST(Outer, BeginsAtParametersThatWereRead) {
  auto run = unevaluated(outer_run(1, "none"));
  const auto self = make_self_communicator();
  RankOfRun rank(run, *self);
  for (const auto& tensor : rank.engine().state(false, DataEngine::Share::held))
    for (std::int64_t i = 0; i < tensor.data.count(); ++i) tensor.data.as<float>()[i] *= 0.5f;
  rank.engine().state_loaded(false);
  RunOutcome outcome;
  collect(outcome, rank.engine(), rank.backend());
  for (const auto& [name, values] : outcome.state) {
    if (name.starts_with("optimizer.")) continue;
    EXPECT_EQ(outcome.state.at("optimizer.outer." + name), values);
  }
}

TEST(Outer, TakesTwoMoreStates) {
  auto run = outer_run(1, "none");
  const auto with = engine_memory(run.model, run.engine);
  run.engine.outer.reset();
  const auto without = engine_memory(run.model, run.engine);
  EXPECT_EQ(with.optimizer, 2 * without.optimizer);
  EXPECT_EQ(with.total() - with.optimizer, without.total() - without.optimizer);
}

}  // namespace
}  // namespace shoal::test
