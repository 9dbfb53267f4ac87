// The simulation, compared with closed forms.
#include "planner/gossip_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "parallel/gossip/topology_schemes.h"

namespace shoal {
namespace test {
namespace {

// Tolerance for sums of some hundred terms in another order than in the closed form.
constexpr double kRounding = 1e-9;
// The share of payload in a packet of 1500 bytes plus half an acknowledgement of 52.
constexpr double kPayload = 1448.0 / 1526;

Distribution time(std::string_view text) { return {text, time_units(), 0}; }

// 8 workers, one per host, with `buckets` buckets, each of which takes `busy` ms to pass a link once.
SimulatedRun plain(double compute, int buckets, double busy, double delay) {
  SimulatedRun run;
  run.topology = make_topology("exp", 8, 1);
  run.compute = compute;
  run.link = {1000.0, delay};
  run.local = {1e9, 0.0};
  run.buckets = buckets;
  run.bytes = buckets * busy * 1000 / 8e-3 * kPayload;  // 1000 Mbit/s
  run.steps = 40;
  return run;
}

SimulatedScheme find(const std::vector<SimulatedScheme>& schemes, std::string_view name) {
  for (const auto& scheme : schemes) {
    if (scheme.name.starts_with(name)) return scheme;
  }
  ADD_FAILURE() << name;
  return {};
}
double step_of(const SimulatedRun& run, std::string_view name) { return find(simulate(run), name).step_ms; }

TEST(GossipSimulation, HiddenWhereComputingTakesLonger) {
  for (const bool by_bucket : {false, true}) {
    auto run = plain(100, 10, 5, 1);
    run.clip_by_bucket = by_bucket;
    const auto gossip = find(simulate(run), "gossip");
    EXPECT_NEAR(gossip.step_ms, 100, kRounding);
    EXPECT_NEAR(gossip.idle, 0, kRounding);
    EXPECT_EQ(gossip.apart_ms, 0);
  }
}

TEST(GossipSimulation, TheLinkDecidesWhereItTakesLonger) {
  for (const bool by_bucket : {false, true}) {
    auto run = plain(100, 10, 25, 0);
    run.clip_by_bucket = by_bucket;
    const auto gossip = find(simulate(run), "gossip");
    EXPECT_NEAR(gossip.step_ms, 250, kRounding);
    EXPECT_NEAR(gossip.idle, 0.6, kRounding);
  }
}

// With updates at the end, a step takes the maximum of its compute time, the link's time, and half of the
// compute, the link's time and the two delays of its last bucket in sequence, over two steps.
TEST(GossipSimulation, StepsOfComputeLinkAndDelay) {
  for (const double compute : {20.0, 45.0, 50.0, 60.0, 100.0}) {
    for (const double delay : {0.0, 0.5, 5.0}) {
      const double all = 10 * 5.0;
      EXPECT_NEAR(step_of(plain(compute, 10, 5, delay), "gossip"),
                  std::max({compute, all, (compute + all + 2 * delay) / 2}), kRounding)
          << compute << " " << delay;
    }
  }
}

// At the end all workers exchange the norm of the gradient, and the losses.
TEST(GossipSimulation, AllReduceIsWhatBackwardDoesNotHide) {
  for (const int micro_batches : {1, 4}) {
    for (const double busy : {1.0, 8.0, 30.0}) {
      const int n = 8, buckets = 10;
      auto run = plain(100, buckets, busy, 2);
      run.micro_batches = micro_batches;
      const double first = 100 * (1 - 2.0 / 3 / micro_batches * (buckets - 1) / buckets);
      const double each = busy * 2 * (n - 1) / n;  // the links see this per bucket
      const double end = std::max(100 + each, first + buckets * each);
      EXPECT_NEAR(step_of(run, "all-reduce, direct"), end + 2 * 2 + 2 * 2, kRounding);
      EXPECT_NEAR(step_of(run, "all-reduce, ring"), end + 2 * (n - 1) * 2 + 2 * 2, kRounding);
    }
  }
}

TEST(GossipSimulation, ZeroGathersInTheNextForwardPass) {
  for (const double busy : {1.0, 8.0, 30.0}) {
    const int n = 8, buckets = 10;
    const double half = busy * (n - 1) / n, delay = 2;
    const double first = 100 * (1 - 2.0 / 3 * (buckets - 1) / buckets);
    const double reduced = std::max(100 + half, first + buckets * half) + delay;
    const double gathered = delay + std::max(half, buckets * half - 100.0 / 3 * (buckets - 1) / buckets);
    EXPECT_NEAR(step_of(plain(100, buckets, busy, delay), "ZeRO 1, direct"), reduced + 2 * delay + gathered,
                kRounding);
  }
}

// Without traffic, a synchronous step takes the slowest worker's time. The largest of n exponential times has
// the mean 1 + 1/2 + ... + 1/n and a variance below pi^2 / 6.
TEST(GossipSimulation, AllReduceWaitsForTheSlowest) {
  auto run = plain(0, 1, 0, 0);
  run.topology = make_topology("exp", 64, 1);
  run.compute = time("exp(10)");
  run.steps = 1000;
  double harmonic = 0;
  for (int i = 1; i <= 64; ++i) harmonic += 1.0 / i;
  const double sd = 10 * std::sqrt(M_PI * M_PI / 6 / 500);
  const auto schemes = simulate(run);
  EXPECT_NEAR(find(schemes, "all-reduce").step_ms, 10 * harmonic, 4 * sd);
  EXPECT_NEAR(find(schemes, "all-reduce").idle, 1 - 1 / harmonic, 0.02);
  EXPECT_LT(find(schemes, "gossip").step_ms, 0.7 * 10 * harmonic);
}

// All workers depend on each other in the end, so none is faster than the slowest for long.
TEST(GossipSimulation, AlwaysTheSameStragglerSetsThePace) {
  auto run = plain(0, 4, 1, 0);
  run.compute = time("at(3: 200, 100)");
  EXPECT_NEAR(step_of(run, "gossip"), 200, kRounding);
}

TEST(GossipSimulation, WorkersOfAHostShareItsLink) {
  auto run = plain(0, 4, 5, 0);
  run.topology = make_topology("exp", 4, 1);
  run.per_host = 2;
  run.local = {1e12, 0.0};  // almost no time, in one of two rounds
  // In the other round two exchanges share the link: 2 * 4 * 5 ms every second step.
  EXPECT_NEAR(step_of(run, "gossip"), 20, 1e-6);
  run.link.bandwidth = Distribution("at(1: 250, 1000)", bandwidth_units(), 1);
  EXPECT_NEAR(step_of(run, "gossip"), 80, 1e-6) << "the slower link decides";
}

// Two exchanges share the link of two hosts. When both begin together, the link is idle while the workers
// compute. When one worker is slower, the other pair is ahead and the link is never idle.
TEST(GossipSimulation, ExchangesShareALinkWhileBothAreUnderWay) {
  auto run = plain(600, 1, 1000, 0);
  run.topology = make_topology("ring", 4, 1);
  run.per_host = 2;
  run.local = {1e12, 0.0};
  EXPECT_NEAR(step_of(run, "gossip"), (600 + 2 * 1000) / 2.0, 1e-6);
  run.compute = time("at(0: 600, 400)");
  EXPECT_NEAR(step_of(run, "gossip"), 1000, 1e-6);
}

// Two independent pairs on the same two hosts: the traffic of the slow pair takes 100 ms of the link in 1000.
TEST(GossipSimulation, ALinkIsFreeWhileASlowPairComputes) {
  auto run = plain(0, 1, 100, 0);
  run.topology = {"pairs", 4, {{{0, 2}, {1, 3}}}};
  run.per_host = 2;
  run.compute = time("at(1: 1000, 0)");
  // In the 20 measured steps, two or three exchanges of the slow pair delay the fast one.
  const double least = 100 + 2 * 100 / 20.0, most = 100 + 3 * 100 / 20.0;
  const double step = step_of(run, "gossip");
  EXPECT_GE(step, (1000 + least) / 2 - kRounding);
  EXPECT_LE(step, (1000 + most) / 2 + kRounding);
}

TEST(GossipSimulation, NoMoreIsUnderWayThanTheTransportKeeps) {
  auto run = plain(0, 1, 0, 50);
  run.link.bandwidth = 1e12;
  run.bytes = 4 << 20;
  // 4 MiB take two delays, and the last of it arrives two delays later.
  EXPECT_NEAR(step_of(run, "gossip"), 200, 1e-6);
  // The same limit for four small buckets.
  run.buckets = 16;
  run.bytes = 16 << 10;
  EXPECT_NEAR(step_of(run, "gossip"), 400, 1e-6);
}

// The link takes 250 ms of each step but the first, whose update does not wait.
TEST(GossipSimulation, WarmUpIsNotMeasured) {
  auto run = plain(100, 10, 25, 0);
  run.steps = 2;
  run.warm_up = 0;
  EXPECT_NEAR(step_of(run, "gossip"), (100 + 250) / 2.0, kRounding);
  run.warm_up = 1;
  EXPECT_NEAR(step_of(run, "gossip"), 250, kRounding);
  EXPECT_EQ(run.first_measured(), 1);
  run.warm_up.reset();
  run.steps = 7;
  EXPECT_EQ(run.first_measured(), 3);
}

// Every `interval` steps of 100 ms an exchange, whose 10 buckets take 5 ms each in a group of two, and two
// delays.
SimulatedRun outer_run(double delay, const OuterOptions& outer) {
  auto run = plain(100, 10, 5, delay);
  run.outer = outer;
  run.steps = 2 * static_cast<int>(outer.interval);
  return run;
}

TEST(GossipSimulation, AnOuterOptimizerWaitsOnceInAnInterval) {
  EXPECT_NEAR(step_of(outer_run(2, {.interval = 20}), "outer"), 100 + (10 * 5 + 2 * 2) / 20.0, kRounding);
  EXPECT_NEAR(step_of(outer_run(2, {.interval = 20, .sent = {OuterSent::Kind::bfloat16}}), "outer"),
              100 + (10 * 2.5 + 2 * 2) / 20.0, kRounding);
  // 2 % of the model go to each other one at once.
  auto largest = outer_run(0.2, {.interval = 20, .sent = {OuterSent::Kind::largest, 0.02}});
  EXPECT_NEAR(step_of(largest, "outer"), 100 + (10 * 5 * 0.02 + 0.2) / 20, kRounding);
  largest.topology = make_topology("complete", 8, 1);
  EXPECT_NEAR(step_of(largest, "outer"), 100 + (7 * 10 * 5 * 0.02 + 0.2) / 20, kRounding);
}

TEST(GossipSimulation, FragmentsWaitInTurn) {
  const OuterOptions fives{.interval = 20, .fragment_of = {0, 1, 2, 3, 4}};
  EXPECT_NEAR(step_of(outer_run(2, fives), "outer"), 100 + 5 * (2 * 5 + 2 * 2) / 20.0, kRounding);
}

TEST(GossipSimulation, WhatIsUnderWayIsHiddenByTheStepsUntilItsEnd) {
  EXPECT_NEAR(step_of(outer_run(2, {.interval = 20, .overlap = 1}), "outer"), 100, kRounding);
  auto slow = outer_run(2, {.interval = 20, .overlap = 1});
  slow.bytes *= 5;
  EXPECT_NEAR(step_of(slow, "outer"), 100 + (10 * 25 + 2 * 2 - 100) / 20.0, kRounding);
  slow.outer->overlap = 3;
  EXPECT_NEAR(step_of(slow, "outer"), 100, kRounding);
}

// Movements go, and at half of the time their sums; workers wait there for what has not come.
TEST(GossipSimulation, Int4GoesInTwoHalves) {
  const double whole = 10 * 5 * 129 / 1024.0;
  OuterOptions outer{.interval = 20, .sent = {OuterSent::Kind::int4}};
  EXPECT_NEAR(step_of(outer_run(0.2, outer), "outer"), 100 + (whole + 2 * 0.2) / 20, kRounding);
  outer.overlap = 1;  // the sums are hidden
  EXPECT_NEAR(step_of(outer_run(0.2, outer), "outer"), 100 + (whole / 2 + 0.2) / 20, kRounding);
  outer.overlap = 2;
  EXPECT_NEAR(step_of(outer_run(0.2, outer), "outer"), 100, kRounding);
  auto slow = outer_run(0.2, outer);
  slow.bytes *= 40;
  EXPECT_NEAR(step_of(slow, "outer"), 100 + 2 * (20 * whole + 0.2 - 100) / 20, kRounding);
}

TEST(GossipSimulation, WholeIntervalsAreMeasured) {
  SimulatedRun run;
  run.outer = OuterOptions{.interval = 30};
  for (const auto& [steps, first] :
       {std::pair(200, 110), std::pair(60, 30), std::pair(59, 29), std::pair(30, 0)}) {
    run.steps = steps;
    EXPECT_EQ(run.first_measured(), first) << steps;
  }
}

TEST(GossipSimulation, OneWorkerWaitsForNobody) {
  auto run = plain(100, 3, 50, 5);
  run.topology = make_topology("ring", 1, 1);
  for (const auto& scheme : simulate(run)) {
    EXPECT_NEAR(scheme.step_ms, 100, kRounding) << scheme.name;
    EXPECT_NEAR(scheme.idle, 0, kRounding) << scheme.name;
  }
}

TEST(GossipSimulation, RepeatsItselfForASeed) {
  auto run = plain(0, 4, 1, 0);
  run.compute = time("normal(100, 20)");
  const double first = step_of(run, "gossip");
  EXPECT_EQ(step_of(run, "gossip"), first);
  run.seed = 2;
  EXPECT_NE(step_of(run, "gossip"), first);
}

TEST(GossipSimulation, ALinkWithoutBandwidthIsRefused) {
  auto run = plain(100, 1, 1, 0);
  run.link.bandwidth = 0.0;
  EXPECT_THROW(simulate(run), UserError);
}

TEST(GossipSimulation, AnInfiniteTimeIsRefused) {
  for (const bool outer : {false, true}) {
    auto run = plain(100, 2, 1, 1);
    if (outer) run.outer = OuterOptions{.interval = 20};
    run.link.bandwidth = 1e-300;
    run.bytes = 1e9;
    EXPECT_THROW(simulate(run), UserError);
    run.bytes = 1;
    EXPECT_NO_THROW(simulate(run)) << "a long time";
  }
}

TEST(Consensus, ExactAfterAPeriod) {
  const auto exact = consensus_of(make_topology("exp", 16, 1), 40, 1);
  EXPECT_EQ(exact.steps_to_thousandth, 4);
  EXPECT_EQ(consensus_of(make_topology("complete", 16, 1), 40, 1).decay, 0);
}

// The two rounds of a ring of n are projections, which together scale its slowest wave by cos^2(2 pi / n), so
// by cos(2 pi / n) per round. Faster waves vanish earlier.
TEST(Consensus, ARingDecaysSlowly) {
  const double wave = std::cos(2 * M_PI / 32);
  const auto ring = consensus_of(make_topology("ring", 32, 1), 1000, 1);
  EXPECT_NEAR(ring.decay, wave, 2e-3);
  EXPECT_GT(ring.steps_to_thousandth, 200);
  EXPECT_LT(ring.steps_to_thousandth, std::log(1e-3) / std::log(wave)) << "as if the slowest wave were all";
}

// With complete averaging, only the last update makes workers differ, with variance 1 - 1/n. With exp, the
// update of s rounds before has been averaged over 2^s workers: 1 + 1/2 + ... - log2(n)/n for one period.
TEST(Consensus, UpdatesKeepWorkersApart) {
  const int n = 1024;
  EXPECT_NEAR(consensus_of(make_topology("complete", n, 1), 100, 1).updates_apart, 1, 0.01);
  double squares = 0;
  for (int s = 0; s < 10; ++s) squares += std::pow(0.5, s) - 1.0 / n;
  EXPECT_NEAR(consensus_of(make_topology("exp", n, 1), 200, 1).updates_apart, std::sqrt(squares), 0.02);
}

}  // namespace
}  // namespace test
}  // namespace shoal
