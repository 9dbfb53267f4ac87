// The outer optimizer compared with the algorithm written by hand around workers that know nothing of each
// other: the same bytes, in every layout.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "core/error.h"
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

// The numbers of a unit, as its buffer has them, to whole blocks.
using Flat = std::vector<float>;

// What goes as int4: levels from -7 to 7 of each block's scale. The rest stays.
Flat in_int4(Flat& rest) {
  Flat sent(rest.size());
  for (std::size_t block = 0; block < rest.size(); block += kSparseBlock) {
    float largest = 0;
    for (std::size_t i = block; i < block + kSparseBlock; ++i) largest = std::max(largest, std::abs(rest[i]));
    if (largest == 0) continue;
    const double unit = std::exp2(std::ilogb(largest / 7) - 19);  // 20 significant bits
    const double scale = std::ceil(largest / 7 / unit) * unit;
    for (std::size_t i = block; i < block + kSparseBlock; ++i) {
      const float level = std::nearbyint(rest[i] / static_cast<float>(scale));
      sent[i] = static_cast<float>(level * scale);
      rest[i] -= sent[i];
    }
  }
  return sent;
}

// A worker, alone, and what stands around it.
class WorkerAlone {
 public:
  WorkerAlone(const RanksRun& run, int worker)
      : outer_(*run.engine.outer), run_(alone(run)), rank_(run_, *self_, {worker, run.mesh.workers}) {
    for (const auto& tensor : rank_.engine().state(false, DataEngine::Share::held))
      weights_[tensor.name] = tensor.data;
    for (const auto& unit : rank_.engine().units()) {
      const auto blocks = (unit.size + kSparseBlock - 1) / kSparseBlock;
      model_.emplace_back(static_cast<std::size_t>(blocks * kSparseBlock));
      for_numbers(unit, [&](std::size_t at, float& weight) { model_.back()[at] = weight; });
    }
    momentum_ = unsent_ = model_;
    for (auto* flats : {&momentum_, &unsent_})
      for (auto& flat : *flats) std::ranges::fill(flat, 0.0f);
  }

  int units() const { return static_cast<int>(model_.size()); }
  void step(int step) { rank_.step(step, outcome_); }
  // The part of a unit's movement that the worker sends.
  Flat sent(int unit) {
    const auto u = static_cast<std::size_t>(unit);
    Flat moved = model_[u];
    for_numbers(rank_.engine().units()[u], [&](std::size_t at, float& weight) { moved[at] -= weight; });
    if (outer_.sent.kind == OuterSent::Kind::all) return moved;
    Flat& rest = unsent_[u];
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] += moved[i];
    if (outer_.sent.kind == OuterSent::Kind::int4) return in_int4(rest);
    const bool all = outer_.sent.kind == OuterSent::Kind::bfloat16;
    const auto count = all ? kSparseBlock : std::llround(outer_.sent.share * kSparseBlock);
    Flat sent(rest.size());
    for (std::size_t block = 0; block < rest.size(); block += kSparseBlock) {
      std::vector<std::size_t> order(kSparseBlock);
      std::iota(order.begin(), order.end(), block);
      std::ranges::stable_sort(order, [&](auto a, auto b) { return std::abs(rest[a]) > std::abs(rest[b]); });
      for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
        float& number = rest[order[k]];
        sent[order[k]] = to_float(to_bfloat16(number));
        number -= sent[order[k]];
      }
    }
    return sent;
  }
  // The movement is the mean of the group's.
  void move(int unit, const Flat& movement) {
    const auto u = static_cast<std::size_t>(unit);
    const auto mu = static_cast<float>(outer_.momentum), rate = static_cast<float>(outer_.lr);
    for (std::size_t i = 0; i < movement.size(); ++i) {
      float &model = model_[u][i], &m = momentum_[u][i];
      const float decayed = mu * m;
      m = decayed + movement[i];
      const float ahead = mu * m, by = outer_.nesterov ? movement[i] + ahead : m, change = -rate * by;
      model += change;
    }
  }
  // The weights become the model that was moved, or come halfway.
  void go_on(int unit) {
    const auto u = static_cast<std::size_t>(unit);
    const auto own = static_cast<float>(outer_.overlap > 0 ? outer_.own_share : 0);
    for_numbers(rank_.engine().units()[u],
                [&](std::size_t at, float& weight) { weight = own * weight + (1 - own) * model_[u][at]; });
  }
  void moved() { rank_.engine().state_loaded(); }

  RunOutcome finish() {
    collect(outcome_, rank_.engine(), rank_.backend());
    const std::vector<Flat>* flats[] = {&model_, &momentum_, &unsent_};
    for (std::size_t i = 0; i < outer_states(outer_); ++i) {
      for (std::size_t u = 0; u < model_.size(); ++u) {
        for (const auto& parameter : rank_.engine().units()[u].parameters) {
          const auto from = (*flats[i])[u].begin() + parameter.offset;
          outcome_.state[fmt::format("optimizer.{}.{}", kOuterStates[i], parameter.name)] = {
              from, from + parameter.shape.count()};
        }
      }
    }
    return outcome_;
  }

 private:
  static RanksRun alone(RanksRun run) {
    run.mesh = {};
    run.engine.gossip.reset();
    run.engine.outer.reset();
    return run;
  }
  template <typename F>
  void for_numbers(const UnitSpec& unit, F&& f) {
    for (const auto& parameter : unit.parameters) {
      const Tensor& weights = weights_.at(parameter.name);
      for (std::int64_t i = 0; i < weights.count(); ++i)
        f(static_cast<std::size_t>(parameter.offset + i), weights.as<float>()[i]);
    }
  }

  OuterOptions outer_;
  RanksRun run_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  RankOfRun rank_;
  RunOutcome outcome_;
  std::map<std::string, Tensor> weights_;
  std::vector<Flat> model_, momentum_, unsent_;  // of each unit
};

// Sums of bfloat16 are rounded once more, and those of int4 packed once more.
Flat mean_of(const std::vector<Flat>& sent, OuterSent::Kind kind) {
  Flat sum = sent.front();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    for (std::size_t m = 1; m < sent.size(); ++m) sum[i] += sent[m][i];
    if (kind == OuterSent::Kind::bfloat16) sum[i] = to_float(to_bfloat16(sum[i]));
  }
  if (kind == OuterSent::Kind::int4 && sent.size() > 1) sum = in_int4(sum);
  for (float& number : sum) number *= 1.0f / static_cast<float>(sent.size());
  return sum;
}

std::vector<RunOutcome> outer_by_hand(const RanksRun& run) {
  const auto& outer = *run.engine.outer;
  std::vector<std::unique_ptr<WorkerAlone>> workers;
  for (int w = 0; w < run.mesh.workers; ++w) workers.push_back(std::make_unique<WorkerAlone>(run, w));
  const auto rounds =
      run.engine.gossip ? run.engine.gossip->topology.rounds : std::vector<Topology::Round>{{{0}}};
  // Calls visit(unit, round) for each whose turn comes after so many steps.
  const auto for_turn = [&](std::int64_t steps, auto&& visit) {
    for (int unit = 0; unit < workers.front()->units(); ++unit) {
      const int fragment = outer.fragment_of.empty() ? 0 : outer.fragment_of[static_cast<std::size_t>(unit)];
      const auto turn = (fragment + 1) * outer.interval / outer.fragments();
      if (steps >= turn && (steps - turn) % outer.interval == 0) visit(unit, (steps - turn) / outer.interval);
    }
  };
  const auto go_on = [&](std::int64_t steps) {
    for_turn(steps, [&](int unit, std::int64_t) {
      for (auto& worker : workers) worker->go_on(unit);
    });
    for (auto& worker : workers) worker->moved();
  };
  for (int step = 0; step < run.steps; ++step) {
    for (auto& worker : workers) worker->step(step);
    if (outer.overlap > 0) go_on(step + 1 - outer.overlap);
    for_turn(step + 1, [&](int unit, std::int64_t round) {
      for (const auto& group : rounds[static_cast<std::size_t>(round) % rounds.size()]) {
        std::vector<Flat> sent;
        for (const int worker : group) sent.push_back(workers[static_cast<std::size_t>(worker)]->sent(unit));
        const Flat mean = mean_of(sent, outer.sent.kind);
        for (const int worker : group) workers[static_cast<std::size_t>(worker)]->move(unit, mean);
      }
    });
    if (outer.overlap == 0) go_on(step + 1);
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

TEST(Outer, FragmentsAreOfAboutEqualSizeAndOfWholeUnits) {
  const GptConfig model{.n_layer = 12, .n_head = 12, .n_embd = 768, .block_size = 1024, .vocab_size = 50257};
  const auto units = gpt_units(model);
  const auto fragment_of = deal_fragments(units, 4);
  std::vector<std::int64_t> sizes(4);
  for (std::size_t u = 0; u < units.size(); ++u)
    sizes[static_cast<std::size_t>(fragment_of[u])] += units[u].size;
  std::int64_t largest_unit = 0;
  for (const auto& unit : units) largest_unit = std::max(largest_unit, unit.size);
  EXPECT_EQ(std::ranges::max(sizes), largest_unit);  // the embedding's, with the head's vectors elsewhere
  EXPECT_GT(2 * std::ranges::min(sizes), largest_unit);
  EXPECT_THROW(deal_fragments(units, 15), UserError);
}

TEST(Outer, EachFragmentHasItsTurnInEachInterval) {
  const OuterOptions outer{.interval = 7, .fragment_of = {0, 1, 2}};
  std::vector<std::int64_t> turns[3];
  for (std::int64_t update = -7; update <= 21; ++update) {
    if (const auto exchange = outer.exchange_after(update)) {
      EXPECT_EQ(exchange->round, std::ssize(turns[exchange->fragment]));
      turns[exchange->fragment].push_back(update);
    }
  }
  EXPECT_THAT(turns[0], testing::ElementsAre(2, 9, 16));
  EXPECT_THAT(turns[1], testing::ElementsAre(4, 11, 18));
  EXPECT_THAT(turns[2], testing::ElementsAre(7, 14, 21));
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
