// The outer optimizer compared with the algorithm written by hand (outer_by_hand.h): the same bytes, in every
// layout.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "ops/far_backend.h"
#include "parallel/gossip/outer_by_hand.h"
#include "parallel/gossip/topology_schemes.h"

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

void expect_outcomes(const RanksRun& run, const std::vector<RunOutcome>& expected) {
  const auto outcomes = train_workers(run);
  ASSERT_EQ(outcomes.size(), expected.size());
  for (std::size_t w = 0; w < outcomes.size(); ++w) {
    EXPECT_EQ(outcomes[w].losses, expected[w].losses) << "worker " << w;
    EXPECT_EQ(outcomes[w].state, expected[w].state) << "worker " << w;
  }
}

// The same with workers of two ranks, whose state rests on the host.
void expect_far_outcomes(RanksRun run, const std::vector<RunOutcome>& expected) {
  run.mesh = {.data = 2, .workers = 2};
  run.engine.zero = 2;
  run.backend = [](int) { return std::make_unique<FarBackend>(make_cpu_backend(1)); };
  run.engine.on_host = true;
  run.engine.streamed = 1024;
  expect_outcomes(run, expected);
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

constexpr OuterSent kBfloat16{OuterSent::Kind::bfloat16}, kInt4{OuterSent::Kind::int4},
    kLargest{OuterSent::Kind::largest, 0.02};

TEST(Outer, SendsLessAndKeepsTheRestByHandToo) {
  for (const auto& sent : {kBfloat16, kInt4, kLargest, OuterSent{OuterSent::Kind::largest, 0.3}}) {
    for (const auto& [workers, topology] :
         {std::pair(1, "none"), std::pair(2, "complete"), std::pair(3, "complete"), std::pair(4, "exp")}) {
      SCOPED_TRACE(
          fmt::format("kind {}, share {}, {} workers", static_cast<int>(sent.kind), sent.share, workers));
      const auto run = unevaluated(outer_run(workers, topology, {.interval = 2, .sent = sent}));
      expect_outcomes(run, outer_by_hand(run));
    }
  }
}

TEST(Outer, AWorkerMayBeAloneInARound) {
  for (const auto& sent : {OuterSent{}, kInt4, kLargest}) {
    auto run = unevaluated(outer_run(3, "complete", {.interval = 2, .sent = sent}));
    run.engine.gossip->topology.rounds = {{{0, 1}, {2}}, {{0}, {1, 2}}};
    expect_outcomes(run, outer_by_hand(run));
  }
}

// Workers that average in groups have outer models of their own; once nothing drives them apart, these meet.
TEST(Outer, ModelsOfGroupsComeTogether) {
  for (const char* topology : {"exp", "ring"}) {
    auto run = unevaluated(outer_run(4, topology, {.interval = 1}));
    run.still_after = 8;
    run.steps = 60;
    double before = 0, after = 0;
    train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      for (int step = 0; step < run.steps; ++step) {
        rank.step(step, outcome);
        if (step + 1 != run.still_after && step + 1 != run.steps) continue;
        const double apart = rank.engine().show_average();
        rank.engine().drop_average();
        if (rank.coordinate().worker == 0) (step + 1 == run.steps ? after : before) = apart;
      }
    });
    EXPECT_GT(before, 1e-3) << topology;
    EXPECT_LT(after, 1e-3 * before) << topology;
  }
}

// Own shares whose products with weights are exact: the rest could be one rounding or two.
std::vector<OuterOptions> streaming() {
  return {{.interval = 4, .fragment_of = {0, 1, 0, 1, 1}},
          {.interval = 3, .overlap = 1, .own_share = 0.5},
          {.interval = 3, .sent = kLargest, .fragment_of = {2, 0, 1, 2, 0}, .overlap = 1, .own_share = 0},
          {.interval = 5, .sent = kBfloat16, .fragment_of = {0, 1, 0, 1, 1}, .overlap = 2, .own_share = 0.5},
          {.interval = 4, .sent = kInt4, .fragment_of = {0, 1, 0, 1, 1}, .overlap = 2},
          {.interval = 4, .sent = kInt4, .overlap = 3},
          {.interval = 2, .nesterov = false, .overlap = 2, .own_share = 0.5}};
}

std::string text_of(const OuterOptions& outer) {
  return fmt::format("every {}, {} fragments, {} under way, sent {}", outer.interval, outer.fragments(),
                     outer.overlap, static_cast<int>(outer.sent.kind));
}

TEST(Outer, MovesFragmentsInTurnWhileWorkersTrain) {
  for (const auto& outer : streaming()) {
    for (const auto& [workers, topology] :
         {std::pair(1, "none"), std::pair(2, "complete"), std::pair(3, "complete"), std::pair(4, "exp")}) {
      SCOPED_TRACE(fmt::format("{}, {} workers", text_of(outer), workers));
      const auto run = unevaluated(outer_run(workers, topology, outer));
      expect_outcomes(run, outer_by_hand(run));
    }
  }
}

TEST(Outer, MovesFragmentsInTurnInEveryLayout) {
  for (const auto& outer : streaming()) {
    auto run = unevaluated(outer_run(2, "complete", outer));
    run.engine.layout_exact = true;
    run.engine.micro_batches = 2;
    const auto expected = outer_by_hand(run);
    for (const auto& [shape, zero] : {std::pair(MeshShape{.data = 2, .workers = 2}, 3),
                                      std::pair(MeshShape{.pipeline = 2, .workers = 2}, 0)}) {
      SCOPED_TRACE(fmt::format("{}, {} stages", text_of(outer), shape.pipeline));
      run.mesh = shape;
      run.engine.zero = zero;
      expect_outcomes(run, expected);
    }
    expect_far_outcomes(run, expected);
  }
}

class OuterLayouts : public testing::TestWithParam<OuterSent> {};

INSTANTIATE_TEST_SUITE_P(, OuterLayouts, testing::Values(OuterSent{}, kBfloat16, kInt4, kLargest));

TEST_P(OuterLayouts, DoNotChangeARun) {
  auto run = unevaluated(outer_run(2, "complete", {.interval = 3, .sent = GetParam()}));
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
  expect_far_outcomes(run, expected);
}

// A scale or a choice of numbers for a block of which tensor ranks have different parts would tell them
// apart.
TEST_P(OuterLayouts, TensorRanksKeepWhatTheyShareEqual) {
  auto run = unevaluated(outer_run(2, "complete", {.interval = 3, .sent = GetParam()}));
  run.mesh.tensor = 2;
  std::mutex mutex;
  std::map<std::string, std::vector<float>> seen;
  int shared = 0;
  train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    for (int step = 0; step < run.steps; ++step) rank.step(step, outcome);
    for (const auto& tensor : rank.engine().state(true, DataEngine::Share::held)) {
      const std::vector<float> values(tensor.data.as<float>(), tensor.data.as<float>() + tensor.data.count());
      const auto key = fmt::format("worker {} {} at {} {}", rank.coordinate().worker, tensor.name,
                                   tensor.box.offset.to_string(), tensor.box.shape.to_string());
      const std::lock_guard lock(mutex);
      const auto [known, first] = seen.try_emplace(key, values);
      shared += first ? 0 : 1;
      EXPECT_TRUE(known->second == values) << key;
    }
  });
  EXPECT_GT(shared, 0);
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
    rank.engine().state_loaded();
    EXPECT_GT(rank.engine().show_average(), 0) << "workers that were read may differ";
    rank.engine().drop_average();
  });
}

// By the time that workers go on from a model, others have moved, or it is a part.
TEST(Outer, WorkersWithSomethingUnderWayAlwaysDiffer) {
  for (const auto& outer : {OuterOptions{.interval = 3, .overlap = 1, .own_share = 0.5},
                            OuterOptions{.interval = 4, .fragment_of = {0, 1, 0, 1, 1}}}) {
    train_workers(outer_run(2, "complete", outer), [&](RankOfRun& rank, RunOutcome& outcome) {
      for (int step = 0; step < 9; ++step) {
        rank.gradient(step, outcome);
        rank.engine().update();
        EXPECT_GT(rank.engine().show_average(), 0) << step;
        rank.engine().drop_average();
      }
    });
  }
}

TEST(Outer, ResumesInsideAnInterval) {
  auto settings = streaming();
  settings.push_back({.interval = 3, .sent = kLargest});
  settings.push_back({.interval = 3, .sent = kInt4});
  for (const auto& outer : settings) {
    auto run = unevaluated(outer_run(2, "complete", outer));
    run.mesh.data = 2;
    run.engine.zero = 1;
    SCOPED_TRACE(text_of(outer));
    const auto whole = train_workers(run);
    for (int until = 1; until < 8; ++until) {
      const auto parts = train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
        for (int step = 0; step < until; ++step) rank.step(step, outcome);
        std::map<std::string, std::vector<float>> saved;
        const auto key = [](const StateTensor& t) { return fmt::format("{} {}", t.name, t.first); };
        for (const auto& t : rank.engine().state(true, DataEngine::Share::held))
          saved[key(t)] = {t.data.as<float>(), t.data.as<float>() + t.data.count()};
        rank.engine().initialize(99);
        for (const auto& t : rank.engine().state(true, DataEngine::Share::held))
          std::ranges::copy(saved.at(key(t)), t.data.as<float>());
        rank.engine().state_loaded();
        for (int step = until; step < run.steps; ++step) rank.step(step, outcome);
      });
      for (std::size_t w = 0; w < whole.size(); ++w)
        EXPECT_TRUE(parts[w].bytes() == whole[w].bytes()) << "after " << until << " steps";
    }
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
  run = outer_run(1, "none", {.interval = 3, .sent = kLargest});
  EXPECT_EQ(2 * engine_memory(run.model, run.engine).optimizer, 5 * without.optimizer);
}

}  // namespace
}  // namespace shoal::test
