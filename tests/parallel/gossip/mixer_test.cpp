// The exchanges of gossip alone: the units of a bucket, convergence of averaging without updates to the mean
// of all, and failing workers.
#include "parallel/gossip/mixer.h"
#include "ops/cpu/cpu.h"
#include "parallel/gossip/topology_schemes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>

#include "core/clock.h"
#include "core/error.h"
#include "ops/buffer.h"
#include "parallel/transports.h"

namespace shoal {

bool operator==(const Bucket& a, const Bucket& b) { return a.first == b.first && a.last == b.last; }
void PrintTo(const Bucket& bucket, std::ostream* out) { *out << bucket.first << "-" << bucket.last; }

namespace test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Units with these numbers of elements, on one rank.
ShardPlan plan_of(const std::vector<std::int64_t>& sizes) {
  std::vector<UnitSpec> units;
  for (const auto size : sizes) {
    UnitSpec unit;
    unit.name = fmt::format("unit.{}", units.size());
    unit.size = size;
    units.push_back(unit);
  }
  return {std::move(units), 0, 1, 0, 1};
}

// Bucket sizes: units are padded to 1024 elements, 4 KiB.
TEST(Buckets, CloseWhereTheNextUnitIsTooMuch) {
  const auto plan = plan_of({1000, 2048, 2000, 1024, 10});
  constexpr double kKiB = 1024;
  EXPECT_THAT(make_buckets(plan, 1),
              ElementsAre(Bucket{4, 4}, Bucket{3, 3}, Bucket{2, 2}, Bucket{1, 1}, Bucket{0, 0}));
  EXPECT_THAT(make_buckets(plan, 8 * kKiB),
              ElementsAre(Bucket{3, 4}, Bucket{2, 2}, Bucket{1, 1}, Bucket{0, 0}));
  EXPECT_THAT(make_buckets(plan, 16 * kKiB), ElementsAre(Bucket{2, 4}, Bucket{0, 1}));
  EXPECT_THAT(make_buckets(plan, 16 * kKiB - 1), ElementsAre(Bucket{3, 4}, Bucket{2, 2}, Bucket{0, 1}));
  EXPECT_THAT(make_buckets(plan, 28 * kKiB), ElementsAre(Bucket{0, 4}));
}

// Units that a pipeline stage does not have are in no bucket, and no bucket spans them.
TEST(Buckets, HaveNoUnitsThatAreElsewhere) {
  EXPECT_THAT(make_buckets(plan_of({0, 1024, 0, 1024, 1024, 0}), 1 << 20),
              ElementsAre(Bucket{3, 4}, Bucket{1, 1}));
  EXPECT_THAT(make_buckets(plan_of({0, 0}), 1 << 20), ElementsAre());
}

// First and last stage average the matrix that they share in equal buckets.
TEST(Buckets, OfATiedEmbeddingAreEqualOnBothStages) {
  const GptConfig config{.n_layer = 4, .n_head = 1, .n_embd = 8, .block_size = 8, .vocab_size = 16};
  const auto buckets_of_stage = [&](const UnitRange& units) {
    return make_buckets(ShardPlan(gpt_units(config, {.tensor = {}, .chunks = {units}}), 0, 1, 0, 1), 1 << 20);
  };
  EXPECT_THAT(buckets_of_stage({0, 3}), ElementsAre(Bucket{1, 2}, Bucket{0, 0}));
  EXPECT_THAT(buckets_of_stage({3, 6}), ElementsAre(Bucket{3, 5}, Bucket{0, 0}));
  EXPECT_THAT(buckets_of_stage({0, 6}), ElementsAre(Bucket{0, 5}));
}

// One worker, without gradients and updates.
class MixingWorker {
 public:
  MixingWorker(Communicator& peers, const Topology& topology, const ShardPlan& plan, double bucket_bytes)
      : plan_(plan),
        options_{.gossip = GossipOptions{topology, bucket_bytes}},
        mode_(options_, plan_),
        arenas_(*backend_, measure(), {}),
        copy_(arenas_.exchange.take(DType::f32, {plan.total() / plan.shards()})),
        direct_(*backend_),
        weights_(*backend_, *self_, plan_, WeightBuffers::take(arenas_, plan_, mode_, DType::f32), mode_,
                 direct_),
        buckets_(make_buckets(plan_, bucket_bytes)),
        mixer_(direct_, peers, topology, plan_, buckets_, weights_, copy_) {}

  Mixer& mixer() { return mixer_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  template <typename F>
  void for_weights(F&& f) {
    std::int64_t at = 0;
    for (int u = 0; u < plan_.unit_count(); ++u) {
      const Tensor master = weights_.master(u);
      for (std::int64_t i = 0; i < plan_.unit(u).size; ++i) f(at++, master.as<float>()[i]);
    }
  }
  void average(std::int64_t step) {
    mixer_.begin_step(step);
    for (const auto& bucket : buckets_) {
      mixer_.mix(bucket);
      mixer_.start(bucket);
    }
  }

 private:
  EngineMemory measure() const {
    EngineArenas arenas;
    arenas.exchange.take(DType::f32, {plan_.total() / plan_.shards()});
    WeightBuffers::take(arenas, plan_, mode_, DType::f32);
    return arenas.used();
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  ShardPlan plan_;
  EngineOptions options_;
  EngineMode mode_;
  EngineArenas arenas_;
  Tensor copy_;
  StateStream direct_;
  WeightStore weights_;
  std::vector<Bucket> buckets_;
  Mixer mixer_;
};

constexpr std::int64_t kElements = 400 + 100 + 30;

// The values of all workers after the rounds of one period.
std::vector<std::vector<float>> after_a_period(Transport transport, const Topology& topology,
                                               std::vector<std::vector<float>> numbers, double bucket_bytes) {
  run_over(transport, {.ranks = topology.workers, .deadline_seconds = 60}, [&](World& world) {
    auto& mine = numbers[static_cast<std::size_t>(world.ranks.rank())];
    MixingWorker worker(world.ranks, topology, plan_of({400, 100, 30}), bucket_bytes);
    worker.for_weights([&](std::int64_t i, float& x) { x = mine[static_cast<std::size_t>(i)]; });
    worker.mixer().set_different();
    // The state after a resume.
    const std::int64_t first = 7 * topology.period();
    for (int round = 0; round < topology.period(); ++round) worker.average(first + round);
    worker.for_weights([&](std::int64_t i, float x) { mine[static_cast<std::size_t>(i)] = x; });
  });
  return numbers;
}

std::vector<std::vector<float>> draw(int workers, const std::function<float(std::mt19937&)>& number) {
  std::mt19937 generator(static_cast<unsigned>(workers));
  std::vector<std::vector<float>> numbers(static_cast<std::size_t>(workers));
  for (auto& mine : numbers) {
    for (std::int64_t i = 0; i < kElements; ++i) mine.push_back(number(generator));
  }
  return numbers;
}

double mean_of(const std::vector<std::vector<float>>& numbers, std::size_t i) {
  double sum = 0;
  for (const auto& mine : numbers) sum += mine[i];
  return sum / static_cast<double>(numbers.size());
}

struct Scheme {
  std::string name;
  int workers, per_node;
};

const std::vector<Scheme> kAveraging = {{"exp", 2, 1},
                                        {"exp", 4, 1},
                                        {"exp", 8, 1},
                                        {"exp", 16, 1},
                                        {"exp", 32, 1},
                                        {"exp", 64, 1},
                                        {"alternating-exp-ring", 4, 2},
                                        {"alternating-exp-ring", 8, 2},
                                        {"alternating-exp-ring", 6, 3},
                                        {"alternating-exp-ring", 16, 4},
                                        {"alternating-exp-ring", 32, 8},
                                        {"alternating-exp-ring", 64, 2},
                                        {"alternating-exp-ring", 64, 16},
                                        {"complete", 5, 1}};

// Whole numbers up to 2^9, halved at most six times and added in at most four to 32 at a time, are exact in
// float32: where groups have 2^k members so is the mean.
TEST(Averaging, ReachesTheMeanOfAllInOnePeriod) {
  for (const auto& [name, workers, per_node] : kAveraging) {
    if ((workers & (workers - 1)) != 0) continue;
    const auto topology = make_topology(name, workers, per_node);
    const auto before = draw(
        workers, [](auto& g) { return static_cast<float>(std::uniform_int_distribution(-512, 512)(g)); });
    for (const double bytes : {1.0, 1e9}) {
      const auto after = after_a_period(Transport::threads, topology, before, bytes);
      std::vector<float> mean;
      for (std::size_t i = 0; i < kElements; ++i) mean.push_back(static_cast<float>(mean_of(before, i)));
      EXPECT_THAT(after, testing::Each(mean)) << name << " of " << workers << ", " << per_node << " per node";
    }
  }
}

// For any values of size at most 1: the mean of a group of k has the errors of k - 1 additions, of sums up to
// k, and of one product, in total less than k roundings of 1. Later rounds average the errors, too.
TEST(Averaging, ReachesTheMeanOfAllButForRounding) {
  for (const auto& [name, workers, per_node] : kAveraging) {
    const auto topology = make_topology(name, workers, per_node);
    const auto before =
        draw(workers, [](auto& g) { return std::uniform_real_distribution<float>(-1, 1)(g); });
    double roundings = 0;
    for (const auto& round : topology.rounds) {
      std::size_t largest = 0;
      for (const auto& group : round) largest = std::max(largest, group.size());
      roundings += static_cast<double>(largest);
    }
    const double bound = roundings * 0x1p-24;
    for (const auto transport : {Transport::threads, Transport::mpi}) {
      if (transport == Transport::mpi && workers > 8) continue;
      const auto after = after_a_period(transport, topology, before, 4096);
      double furthest = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        for (const auto& mine : after) furthest = std::max(furthest, std::abs(mine[i] - mean_of(before, i)));
      }
      EXPECT_LE(furthest, bound) << name << " of " << workers << " over " << name_of(transport);
    }
  }
}

TEST(Averaging, HasNothingToDoWhereAllHoldTheSame) {
  run_threads({.ranks = 3, .deadline_seconds = 60}, [](World& world) {
    MixingWorker worker(world.ranks, make_topology("complete", 3, 1), plan_of({10}), 1);
    EXPECT_TRUE(worker.mixer().equal());
    worker.for_weights([&](std::int64_t, float& x) { x = static_cast<float>(world.ranks.rank()); });
    worker.average(0);
    EXPECT_FALSE(worker.mixer().equal());  // counts updates, whatever their size
    worker.for_weights([&](std::int64_t, float x) { EXPECT_EQ(x, world.ranks.rank()); });
    worker.mixer().set_equal();
    worker.average(1);
    worker.for_weights([&](std::int64_t, float x) { EXPECT_EQ(x, world.ranks.rank()); });
    worker.average(2);
    worker.for_weights([&](std::int64_t, float x) { EXPECT_EQ(x, 1); });
  });
}

// All ranks of a worker must agree on whether workers differ; a stage that trains nothing has no buckets.
TEST(Averaging, WorkersDifferAfterAStepWhereAStageTrainsNothing) {
  run_threads({.ranks = 2, .deadline_seconds = 60}, [](World& world) {
    MixingWorker worker(world.ranks, make_topology("complete", 2, 1), plan_of({0}), 1);
    EXPECT_THAT(worker.buckets(), testing::IsEmpty());
    worker.average(0);
    EXPECT_FALSE(worker.mixer().equal());
  });
}

constexpr double kWorkersSoon = 5;  // seconds within which all workers of a failed run have ended

// Worker 1 fails after it has sent some of its buckets. The others wait for the rest, or are ahead.
TEST(Averaging, AWorkerThatThrowsInAnExchangeStopsAll) {
  for (const auto transport : {Transport::threads, Transport::mpi}) {
    for (const std::size_t started : {0, 1, 2}) {
      if (transport == Transport::mpi && started != 1) continue;
      const Stopwatch watch;
      const auto run = [&] {
        run_over(transport, {.ranks = 4, .deadline_seconds = 60}, [&](World& world) {
          MixingWorker worker(world.ranks, make_topology("ring", 4, 1), plan_of({50000, 200000, 1000}), 1);
          worker.mixer().set_different();
          for (int step = 0; step < 8; ++step) {
            if (world.ranks.rank() == 1 && step == 3) {
              worker.mixer().begin_step(step);
              for (std::size_t b = 0; b < started; ++b) {
                worker.mixer().mix(worker.buckets()[b]);
                worker.mixer().start(worker.buckets()[b]);
              }
              fail("the disk is full");
            }
            worker.average(step);
          }
        });
      };
      EXPECT_THAT(run, ThrowsMessage<Error>("rank 1: the disk is full"))
          << name_of(transport) << ", " << started;
      EXPECT_LT(watch.seconds(), kWorkersSoon);
    }
  }
}

TEST(Averaging, SaysWhatItWaitsFor) {
  const auto run = [] {
    run_threads({.ranks = 2, .deadline_seconds = 60}, [](World& world) {
      MixingWorker worker(world.ranks, make_topology("exp", 2, 1), plan_of({10, 10}), 1);
      worker.average(0);
      if (world.ranks.rank() == 1) return;
      worker.average(1);
      worker.average(2);
    });
  };
  EXPECT_THAT(run, ThrowsMessage<Error>(HasSubstr("[step 3, averaging of unit.1]: rank 1 ended without it")));
}

}  // namespace
}  // namespace test
}  // namespace shoal
