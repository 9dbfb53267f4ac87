// The state of workers: showing their mean does not change the run, and a run can be resumed inside a period.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"

namespace shoal::test {
namespace {

using Whole = std::map<std::string, std::vector<float>, std::less<>>;

// The parts of tensors that a rank has, by name and first element.
Whole held(DataEngine& engine, bool optimizer) {
  Whole all;
  for (const auto& tensor : engine.state(optimizer, DataEngine::Share::held)) {
    const auto* data = tensor.data.as<float>();
    auto& values = all[fmt::format("{} {} {}", tensor.name, tensor.box.offset[0], tensor.first)];
    values.assign(data, data + tensor.data.count());
  }
  return all;
}

void put_back(DataEngine& engine, const Whole& saved, bool equal) {
  for (const auto& tensor : engine.state(true, DataEngine::Share::held)) {
    const auto& values = saved.at(fmt::format("{} {} {}", tensor.name, tensor.box.offset[0], tensor.first));
    std::copy(values.begin(), values.end(), tensor.data.as<float>());
  }
  engine.state_loaded(true, equal);
}

// Workers of one rank in every topology, and of several in one.
std::vector<RanksRun> all_runs() {
  std::vector<RanksRun> runs;
  for (const auto& topology : gossip_topologies()) {
    auto run = gossip_run(topology);
    adamw_of(run.engine).accum_steps = 3;
    run.engine.gossip->bucket_bytes = runs.size() % 2 ? kTinyBuckets : kSomeBuckets;
    run.engine.gossip->clip_by_bucket = runs.size() % 3 == 1;
    run.engine.compute = runs.size() % 3 == 2 ? DType::bf16 : DType::f32;
    runs.push_back(run);
  }
  const auto topology = make_topology("ring", 4, 1);
  for (int mode = 0; mode < 8; ++mode) {
    const int zero = mode / 2;
    auto run = gossip_run(topology);
    run.mesh.data = 2;
    run.engine.zero = zero;
    run.engine.layout_exact = mode % 2 == 1;
    run.engine.compute = zero >= 2 ? DType::bf16 : DType::f32;
    run.engine.gossip->bucket_bytes = kSomeBuckets;
    runs.push_back(run);
  }
  auto run = gossip_run(make_topology("exp", 2, 1));
  run.mesh.pipeline = run.mesh.tensor = 2;
  run.engine.layout_exact = true;
  runs.push_back(run);
  run.sequence = true;
  run.mesh.pipeline = 1;
  run.mesh.data = 2;
  run.engine.zero = 2;
  runs.push_back(run);
  return runs;
}

class EveryRun : public testing::TestWithParam<RanksRun> {};

// At every step, the state of the workers is copied into new engines, which continue. Their average can be
// shown before.
TEST_P(EveryRun, GoesOnFromItsState) {
  const auto& run = GetParam();
  const auto expected = bytes_of(train_workers(run));
  for (int saved_at = 0; saved_at < run.steps; ++saved_at) {
    const auto resumed = train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      Whole saved;
      {
        RankOfRun before(run, rank.mesh().world());
        for (int step = 0; step < saved_at; ++step) before.step(step, outcome);
        saved = held(before.engine(), true);
      }
      auto& engine = rank.engine();
      put_back(engine, saved, saved_at == 0);
      EXPECT_EQ(engine.show_average() > 0, saved_at > 0);
      engine.drop_average();
      EXPECT_TRUE(held(engine, true) == saved);
      for (int step = saved_at; step < run.steps; ++step) rank.step(step, outcome);
    });
    EXPECT_TRUE(bytes_of(resumed) == expected) << "after " << saved_at << " steps";
  }
}

// Whole tensors of all workers.
struct Shown {
  std::vector<RunOutcome> own;      // models of the workers, before the average is shown
  std::vector<RunOutcome> shown;    // models while it is shown
  std::vector<double> distances;    // consensus distance, as returned on each rank
  std::vector<double> evaluations;  // losses of the shown model, by worker
  std::mutex mutex;

  explicit Shown(int workers) : own(workers), shown(workers), evaluations(workers) {}
};

void look_at_average(RankOfRun& rank, int step, Shown& look) {
  const auto w = static_cast<std::size_t>(rank.coordinate().worker);
  auto& engine = rank.engine();
  const auto collect_into = [&](RunOutcome& outcome) {
    const std::lock_guard lock(look.mutex);
    collect(outcome, engine, rank.backend());
  };
  RunOutcome before, meanwhile, after;
  rank.evaluate(step, before);
  collect_into(look.own[w]);
  const auto own = held(engine, true);
  const double distance = engine.show_average();
  collect_into(look.shown[w]);
  rank.evaluate(step, meanwhile);
  engine.drop_average();
  EXPECT_TRUE(held(engine, true) == own);
  rank.evaluate(step, after);
  EXPECT_EQ(after.evaluations, before.evaluations);
  EXPECT_EQ(after.predictions, before.predictions);
  const std::lock_guard lock(look.mutex);
  look.distances.push_back(distance);
  look.evaluations[w] = meanwhile.evaluations.front();
}

// Expects the mean of W workers, element by element: W - 1 additions and a product.
void expect_mean(const Shown& look) {
  const std::size_t workers = look.own.size();
  std::vector<std::vector<float>> own;
  for (const auto& outcome : look.own) own.push_back(parameters_of(outcome));
  const auto mean = parameters_of(look.shown.front());
  for (const auto& outcome : look.shown) EXPECT_TRUE(parameters_of(outcome) == mean);
  double furthest = 0, distance = 0, length = 0;  // relative to its bound; squares
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0, absolute = 0;
    for (const auto& mine : own) {
      sum += mine[i];
      absolute += std::abs(mine[i]);
      distance += std::pow(double{mine[i]} - double{mean[i]}, 2);
    }
    // Each partial sum is at most the sum of absolute values; 1 / W and the product are rounded, too.
    const double bound =
        (static_cast<double>(workers) + 1) * 0x1p-24 * absolute / static_cast<double>(workers);
    if (sum / static_cast<double>(workers) == mean[i]) continue;
    furthest = std::max(furthest, std::abs(sum / static_cast<double>(workers) - mean[i]) / bound);
  }
  for (const float x : mean) length += double{x} * double{x};
  EXPECT_LE(furthest, 1);
  // Differences are rounded to float32, squares and sums are double.
  const double expected = std::sqrt(distance / static_cast<double>(workers) / length);
  EXPECT_GT(expected, 1e-3);
  for (const double told : look.distances) EXPECT_NEAR(told, expected, 0x1p-23 * expected);
}

// The loss of an engine on one rank with these parameters.
double evaluate_alone(const RanksRun& run, const RunOutcome& shown, int step,
                      const WorkerShare& worker_share) {
  auto alone = run;
  alone.mesh = {};
  alone.engine.gossip.reset();
  alone.engine.zero = 0;
  const auto self = make_self_communicator();
  RankOfRun rank(alone, *self, worker_share);
  for (const auto& tensor : rank.engine().state(false, DataEngine::Share::held)) {
    const auto& values = shown.state.at(tensor.name);
    std::copy(values.begin(), values.end(), tensor.data.as<float>());
  }
  rank.engine().state_loaded();
  RunOutcome outcome;
  rank.evaluate(step, outcome);
  return outcome.evaluations.front();
}

// Shows the average after every step. A tensor group regroups the sums behind a loss, of about 2^12 terms in
// sequence: roundings with random signs add up to 2^6 of one.
TEST_P(EveryRun, IsTheSameWhenItsAverageIsLookedAt) {
  const auto& run = GetParam();
  std::vector<std::unique_ptr<Shown>> looks;
  for (int step = 0; step < run.steps; ++step) looks.push_back(std::make_unique<Shown>(run.mesh.workers));
  const auto looked = train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    EXPECT_EQ(rank.engine().show_average(), 0);  // all workers have the same model, which is its mean
    rank.engine().drop_average();
    for (int step = 0; step < run.steps; ++step) {
      rank.step(step, outcome);
      look_at_average(rank, step, *looks[static_cast<std::size_t>(step)]);
    }
  });
  EXPECT_TRUE(bytes_of(looked) == bytes_of(train_workers(run)));
  for (int step = 0; step < run.steps; ++step) {
    const auto& look = *looks[static_cast<std::size_t>(step)];
    expect_mean(look);
    for (int w = 0; w < run.mesh.workers; ++w) {
      const double expected =
          evaluate_alone(run, look.shown[static_cast<std::size_t>(w)], step, {w, run.mesh.workers});
      const double bound = run.mesh.tensor > 1 ? 0x1p-18 * expected : 0;
      EXPECT_NEAR(look.evaluations[static_cast<std::size_t>(w)], expected, bound);
    }
  }
}

TEST_P(EveryRun, GoesOnFromTheAverage) {
  const auto& run = GetParam();
  const auto workers = train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    for (int step = 0; step < run.steps; ++step) rank.step(step, outcome);
    auto& engine = rank.engine();
    EXPECT_GT(engine.show_average(), 0);
    const auto shown = held(engine, true);
    engine.keep_average();
    EXPECT_TRUE(held(engine, true) == shown);
    // Again, but for the rounding of the mean of W equal numbers (expect_mean).
    EXPECT_LE(engine.show_average(), (run.mesh.workers + 1) * 0x1p-24);
    engine.drop_average();
    EXPECT_TRUE(held(engine, true) == shown);
  });
  for (const auto& worker : workers) EXPECT_TRUE(parameters_of(worker) == parameters_of(workers.front()));
}

INSTANTIATE_TEST_SUITE_P(Of, EveryRun, testing::ValuesIn(all_runs()), [](const auto& test) {
  const auto& run = test.param;
  auto title = title_of(run.engine.gossip->topology);
  if (run.mesh.ranks_of_worker() > 1) {
    title += fmt::format("_{}x{}x{}_zero{}{}", run.mesh.pipeline, run.mesh.data, run.mesh.tensor,
                         run.engine.zero, run.engine.layout_exact ? "_exact" : "");
  }
  return title;
});

}  // namespace
}  // namespace shoal::test
