// Gossip's engine compared with the algorithm written by hand: the same bytes for every worker.
#include <gmock/gmock.h>

#include "comm/recording.h"
#include "core/error.h"
#include "ops/dry/dry_backend.h"
#include "parallel/gossip/mixer.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"

namespace shoal::test {
namespace {

// A worker of the reference: an engine on one rank computes the gradient, this class everything else.
class HandWorker {
 public:
  HandWorker(const RanksRun& run, int worker)
      : gossip_(*run.engine.gossip),
        run_(alone(run)),
        rank_(run_, *self_, {worker, run.mesh.workers}),
        buckets_(make_buckets(ShardPlan(rank_.engine().units(), 0, 1, 0, 1), gossip_.bucket_bytes)) {
    for (const auto& tensor : rank_.engine().state(true, DataEngine::Share::held))
      state_[tensor.name] = tensor.data;
  }

  void gradient(int step, float factor) { rank_.gradient(step, outcome, factor); }

  DataEngine& engine() { return rank_.engine(); }

  // The worker's parameters, read by the others.
  std::map<std::string, Tensor> parameters() const {
    std::map<std::string, Tensor> found;
    for (const auto& [name, data] : state_) {
      if (!name.starts_with("optimizer.")) found[name] = data;
    }
    return found;
  }

  // Updates the averaged parameters, with decay. A gradient that is not finite does not change them.
  void update(int step) {
    const double norm = outcome.norms.back();
    for (const auto& bucket : buckets_) {
      if (!std::isfinite(norm)) continue;
      const float clip = clip_of(gossip_.clip_by_bucket ? std::sqrt(squares(bucket)) : norm);
      for (int unit = bucket.first; unit <= bucket.last; ++unit) update_unit(unit, step + 1, clip);
    }
    rank_.engine().state_loaded();
    if ((step + 1) % run_.evaluate_every == 0) rank_.evaluate(step, outcome);
  }

  RunOutcome finish() {
    collect(outcome, rank_.engine(), rank_.backend());
    return outcome;
  }

  RunOutcome outcome;

 private:
  static RanksRun alone(RanksRun run) {
    run.mesh = {};
    run.engine.gossip.reset();
    run.engine.grad_clip = 0;
    return run;
  }

  float clip_of(double norm) const { return static_cast<float>(std::min(1.0, kGossipClip / (norm + 1e-6))); }
  double squares(const Bucket& bucket) {
    double sum = 0;
    for (int unit = bucket.first; unit <= bucket.last; ++unit) {
      const Tensor flat = rank_.engine().gradients(unit, {}).flat;
      for (std::int64_t i = 0; i < flat.count(); ++i) sum += std::pow(double{flat.as<float>()[i]}, 2);
    }
    return sum;
  }
  void update_unit(int unit, std::int64_t number, float clip) {
    const UnitView gradients = rank_.engine().gradients(unit, {});
    for (const auto& parameter : gradients.spec->parameters) {
      const auto& [name, decay] = std::tie(parameter.name, parameter.decay);
      const AdamWScalars scalars = adamw_scalars(adamw_of(run_.engine), run_.lr, number);
      auto settings = adamw_settings(adamw_of(run_.engine), decay);
      settings.scalars = &scalars;
      settings.grad_scale = &clip;
      const Tensor weights = state_.at(name);
      rank_.backend().adamw(
          {.weights = weights,
           .m = state_.at("optimizer.m." + name),
           .v = state_.at("optimizer.v." + name),
           .mean = state_.contains("optimizer.a." + name) ? state_.at("optimizer.a." + name) : Tensor{},
           .grads = part_of(gradients[parameter.slice()], 0, weights.count())},
          settings);
    }
  }

  GossipOptions gossip_;
  RanksRun run_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  RankOfRun rank_;
  std::vector<Bucket> buckets_;
  std::map<std::string, Tensor> state_;
};

// Every group of a round takes its mean; members are added in their order.
void mix(std::vector<std::unique_ptr<HandWorker>>& workers, const Topology::Round& round) {
  for (const auto& group : round) {
    std::vector<std::map<std::string, Tensor>> members;
    for (const int worker : group) members.push_back(workers[static_cast<std::size_t>(worker)]->parameters());
    const float share = 1.0f / static_cast<float>(group.size());
    for (const auto& [name, first] : members.front()) {
      for (std::int64_t i = 0; i < first.count(); ++i) {
        float sum = first.as<float>()[i];
        for (std::size_t m = 1; m < members.size(); ++m) sum += members[m].at(name).as<float>()[i];
        for (auto& member : members) member.at(name).as<float>()[i] = group.size() == 1 ? sum : share * sum;
      }
    }
  }
}

// Events that do not occur in every step.
struct Incidents {
  int bad_gradients =
      0;            // interval, over steps and workers, of gradients that are not finite and cause no update
  int average = 0;  // interval in steps at which all workers continue from the mean of all

  float factor(int worker, int step) const {
    const bool bad = bad_gradients > 0 && (step + 3 * worker) % bad_gradients == 1;
    return bad ? std::numeric_limits<float>::infinity() : 1;
  }
  bool averages(int step) const { return average > 0 && (step + 1) % average == 0; }
};

// The gradient is computed at the worker's own model and applied to the mean. Before the first update all are
// equal.
std::vector<RunOutcome> by_hand(const RanksRun& run, const Incidents& incidents = {}) {
  std::vector<std::unique_ptr<HandWorker>> workers;
  for (int w = 0; w < run.mesh.workers; ++w) workers.push_back(std::make_unique<HandWorker>(run, w));
  const auto& rounds = run.engine.gossip->topology.rounds;
  const auto all = make_topology("complete", run.mesh.workers, 1).rounds.front();
  for (int step = 0; step < run.steps; ++step) {
    for (std::size_t w = 0; w < workers.size(); ++w)
      workers[w]->gradient(step, incidents.factor(static_cast<int>(w), step));
    if (step > 0) mix(workers, rounds[static_cast<std::size_t>(step) % rounds.size()]);
    for (auto& worker : workers) worker->update(step);
    if (!incidents.averages(step)) continue;
    mix(workers, all);
    for (auto& worker : workers) worker->engine().state_loaded();
  }
  std::vector<RunOutcome> outcomes;
  for (auto& worker : workers) outcomes.push_back(worker->finish());
  return outcomes;
}

std::vector<RunOutcome> by_engine(const RanksRun& run, const Incidents& incidents) {
  return train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    auto& engine = rank.engine();
    for (int step = 0; step < run.steps; ++step) {
      rank.gradient(step, outcome, incidents.factor(rank.coordinate().worker, step));
      // A bad update is skipped.
      std::isfinite(outcome.norms.back()) || step % 2 == 0 ? engine.update() : engine.skip_update();
      if ((step + 1) % run.evaluate_every == 0) rank.evaluate(step, outcome);
      if (!incidents.averages(step)) continue;
      engine.show_average();
      engine.keep_average();
    }
  });
}

class ByHand : public testing::TestWithParam<Topology> {
 protected:
  static void expect_same(const RanksRun& run, const std::vector<RunOutcome>& hand,
                          const Incidents& incidents = {}) {
    auto workers = by_engine(run, incidents);
    SCOPED_TRACE(fmt::format("buckets of {} bytes{}, windows of {}, {}", run.engine.gossip->bucket_bytes,
                             run.engine.gossip->clip_by_bucket ? " that clip" : "",
                             adamw_of(run.engine).accum_steps, name_of(run.engine.compute)));
    for (std::size_t w = 0; w < hand.size(); ++w) {
      // With norms per bucket, the squares are added in another order: n non-negative terms.
      const auto elements = static_cast<double>(parameters_of(hand[w]).size());
      const double bound = run.engine.gossip->clip_by_bucket ? elements * 0x1p-53 : 0;
      for (std::size_t i = 0; i < hand[w].norms.size(); ++i) {
        EXPECT_EQ(std::isfinite(workers[w].norms.at(i)), std::isfinite(hand[w].norms[i]));
        if (!std::isfinite(hand[w].norms[i])) continue;
        EXPECT_NEAR(workers[w].norms.at(i), hand[w].norms[i], bound * hand[w].norms[i]);
        EXPECT_GT(hand[w].norms[i], kGossipClip) << "does not clip";
      }
      workers[w].norms = hand[w].norms;
      EXPECT_TRUE(workers[w].bytes() == hand[w].bytes())
          << "worker " << w << ": losses, evaluations, parameters or moments differ";
    }
  }
};

TEST_P(ByHand, EveryWorkerHasItsBytes) {
  for (const int accum_steps : {1, 3}) {
    auto run = gossip_run(GetParam());
    adamw_of(run.engine).accum_steps = accum_steps;
    const auto hand = by_hand(run);
    EXPECT_TRUE(parameters_of(hand[0]) != parameters_of(hand[1]));
    for (const double bytes : {kTinyBuckets, kSomeBuckets, kOneBucket}) {
      run.engine.gossip->bucket_bytes = bytes;
      expect_same(run, hand);
    }
  }
}

// Gossip with updates in the backward pass.
TEST_P(ByHand, EveryWorkerHasItsBytesWhereBucketsClip) {
  for (const int accum_steps : {1, 3}) {
    for (const double bytes : {kTinyBuckets, kSomeBuckets, kOneBucket}) {
      auto run = gossip_run(GetParam());
      adamw_of(run.engine).accum_steps = accum_steps;
      run.engine.gossip->bucket_bytes = bytes;
      run.engine.gossip->clip_by_bucket = true;
      expect_same(run, by_hand(run));
    }
  }
}

TEST_P(ByHand, EveryWorkerHasItsBytesInBfloat16) {
  for (const bool clip_by_bucket : {false, true}) {
    auto run = gossip_run(GetParam());
    run.engine.compute = DType::bf16;
    run.engine.gossip->bucket_bytes = kSomeBuckets;
    run.engine.gossip->clip_by_bucket = clip_by_bucket;
    run.recompute = Recompute::block;
    expect_same(run, by_hand(run));
  }
}

// A worker that skips its update still averages with others.
TEST_P(ByHand, EveryWorkerHasItsBytesWhenGradientsAreBad) {
  for (const auto& [clip_by_bucket, compute] :
       {std::pair(false, DType::f32), {false, DType::bf16}, {true, DType::bf16}}) {
    auto run = gossip_run(GetParam());
    run.steps += 3;
    run.engine.compute = compute;
    run.engine.gossip->bucket_bytes = kSomeBuckets;
    run.engine.gossip->clip_by_bucket = clip_by_bucket;
    const Incidents incidents{.bad_gradients = 4};
    const auto hand = by_hand(run, incidents);
    EXPECT_THAT(
        hand[0].norms,
        testing::Contains(testing::Not(testing::ResultOf([](double x) { return std::isfinite(x); }, true))));
    expect_same(run, hand, incidents);
  }
}

// Moments are not averaged.
TEST_P(ByHand, EveryWorkerHasItsBytesWhenAllGoOnFromTheAverage) {
  for (const bool clip_by_bucket : {false, true}) {
    auto run = gossip_run(GetParam());
    run.steps += 3;
    run.engine.compute = clip_by_bucket ? DType::f32 : DType::bf16;
    adamw_of(run.engine).accum_steps = 3;
    run.engine.gossip->bucket_bytes = kSomeBuckets;
    run.engine.gossip->clip_by_bucket = clip_by_bucket;
    const Incidents incidents{.average = 3};
    expect_same(run, by_hand(run, incidents), incidents);
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ByHand, testing::ValuesIn(gossip_topologies()),
                         [](const auto& test) { return title_of(test.param); });

RanksRun plain(RanksRun run) {
  run.mesh.workers = 1;
  run.engine.gossip.reset();
  return run;
}

// Compares norms only where they must have the same bits; else the caller does.
std::string state_bytes(RunOutcome outcome) {
  outcome.norms.clear();
  return outcome.bytes();
}

TEST(Gossip, OneWorkerIsPlainTraining) {
  for (const bool layout_exact : {false, true}) {
    for (const double bytes : {kTinyBuckets, kOneBucket}) {
      auto run = gossip_run(make_topology("exp", 1, 1));
      run.steps = 10;
      run.engine.gossip->bucket_bytes = bytes;
      run.engine.layout_exact = layout_exact;
      EXPECT_TRUE(train(run).bytes() == train(plain(run)).bytes())
          << bytes << (layout_exact ? " layout" : "");
    }
  }
}

// A bucket of everything has the norm of the whole gradient, but its squares are added by units instead of by
// blocks: n terms that are not negative, in double. The factor is rounded to float32, which hides that (but
// once in some 2^29 / n steps): so all else is the same bits.
TEST(Gossip, OneWorkerWhoseOnlyBucketClipsIsPlainTraining) {
  auto run = gossip_run(make_topology("exp", 1, 1));
  run.steps = 10;
  run.engine.gossip->bucket_bytes = kOneBucket;
  run.engine.gossip->clip_by_bucket = true;
  const auto gossip = train(run), expected = train(plain(run));
  const double elements = static_cast<double>(parameters_of(expected).size());
  for (std::size_t i = 0; i < expected.norms.size(); ++i) {
    EXPECT_GT(expected.norms[i], run.engine.grad_clip);
    EXPECT_NEAR(gossip.norms[i], expected.norms[i], elements * 0x1p-53 * expected.norms[i]);
  }
  EXPECT_TRUE(state_bytes(gossip) == state_bytes(expected));
}

// Without clipping, the time when buckets are updated makes no difference.
TEST(Gossip, BucketsThatDoNotClipAreUpdatedTheSame) {
  for (const double bytes : {kTinyBuckets, kSomeBuckets}) {
    auto run = gossip_run(make_topology("exp", 4, 1));
    run.engine.grad_clip = 0;
    run.engine.gossip->bucket_bytes = bytes;
    const auto at_the_end = train_workers(run);
    run.engine.gossip->clip_by_bucket = true;
    const auto in_backward = train_workers(run);
    for (std::size_t w = 0; w < at_the_end.size(); ++w)
      EXPECT_TRUE(state_bytes(in_backward[w]) == state_bytes(at_the_end[w]));
  }
}

// The float32 mean of two or four equal numbers is exact: x + x is exact, and the rounding of 4 x undoes that
// of 3 x.
TEST(Gossip, CompleteOnEqualDataIsPlainTraining) {
  for (const int workers : {2, 4}) {
    auto run = gossip_run(make_topology("complete", workers, 1));
    run.steps = 10;
    run.same_data = true;
    const auto expected = train(plain(run)).bytes();
    for (const auto& worker : train_workers(run)) EXPECT_TRUE(worker.bytes() == expected) << workers;
  }
}

// Gradients are not exchanged between workers.
TEST(Gossip, OnlyParametersTravel) {
  auto run = gossip_run(make_topology("complete", 2, 1));
  run.steps = 1;
  const auto workers = train_workers(run);
  EXPECT_TRUE(workers[0].state.at("optimizer.m.transformer.wte.weight") !=
              workers[1].state.at("optimizer.m.transformer.wte.weight"));
  EXPECT_TRUE(parameters_of(workers[0]) != parameters_of(workers[1]));
}

// The estimated memory equals the allocated memory.
TEST(Gossip, TakesTheMemoryThatItSays) {
  int n = 0;
  for (const auto& topology : gossip_topologies()) {
    for (int zero = 0; zero <= 3; ++zero) {
      auto run = gossip_run(topology);
      run.mesh.data = 2;
      run.engine.zero = zero;
      run.engine.compute = n % 2 ? DType::bf16 : DType::f32;
      run.engine.layout_exact = n % 3 == 0;
      adamw_of(run.engine).accum_steps = 1 + n++ % 4;
      Recording recording(run.mesh.ranks(), run.mesh.ranks() - 1);
      Mesh mesh(recording.ranks(), run.mesh);
      DryBackend backend;
      const auto engine =
          std::make_unique<DataEngine>(backend, mesh, run.model, run.engine_options(mesh.coordinate()));
      const auto memory = engine_memory(run.model, run.engine, run.mesh.data);
      // An empty arena takes one byte.
      EXPECT_NEAR(static_cast<double>(backend.most_allocated()), static_cast<double>(memory.total()), 5)
          << title_of(topology) << ", ZeRO " << zero;
      // One copy of the parameters that this rank has, and the buffers of the mean.
      auto without = run.engine;
      without.gossip.reset();
      const ShardPlan plan(gpt_units(run.model), zero, 1, 0, run.mesh.data);
      Arena more;
      more.take(DType::f32, {plan.total() / plan.shards()});
      AverageBuffers::take(more);
      EXPECT_EQ(memory.exchange - engine_memory(run.model, without, run.mesh.data).exchange, more.used());
    }
  }
}

TEST(Gossip, RefusesWhatItCannotDo) {
  const auto run_of = [](int data, bool layout_exact) {
    auto run = gossip_run(make_topology("exp", 2, 1));
    run.mesh.data = data;
    run.engine.layout_exact = layout_exact;
    run.engine.gossip->clip_by_bucket = true;
    return run;
  };
  for (const auto& run : {run_of(2, false), run_of(1, true)}) {
    EXPECT_THAT([&] { train_workers(run); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("workers of one rank")));
  }
  auto run = run_of(1, false);
  run.engine.gossip->topology = make_topology("exp", 4, 1);
  EXPECT_THAT([&] { train_workers(run); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("topology exp is one of 4 workers, not 2")));
  run.engine.gossip.reset();
  EXPECT_THAT([&] { train_workers(run); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("there are 2 workers and no topology")));
}

}  // namespace
}  // namespace shoal::test
