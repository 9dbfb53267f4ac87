// Topologies: the rounds of schemes, the effect of averaging over them, and refused inputs.
#include "parallel/gossip/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/error.h"
#include "core/philox.h"
#include "parallel/gossip/topology_schemes.h"

namespace shoal {
namespace test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Round = Topology::Round;
using Matrix = std::vector<std::vector<double>>;

Matrix identity(int n) {
  Matrix w(static_cast<std::size_t>(n), std::vector<double>(static_cast<std::size_t>(n), 0));
  for (int i = 0; i < n; ++i) w[i][i] = 1;
  return w;
}

Matrix times(const Matrix& a, const Matrix& b) {
  const std::size_t n = a.size();
  Matrix c(n, std::vector<double>(n, 0));
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      for (std::size_t j = 0; j < n; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t = a;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a.size(); ++j) t[i][j] = a[j][i];
  }
  return t;
}

// Column j is mix applied to the j-th unit vector.
Matrix matrix_of(const Topology& topology, int round) {
  Matrix columns = identity(topology.workers);
  for (auto& column : columns) mix(topology, round, column);
  return transposed(columns);
}

Matrix product_of_period(const Topology& topology) {
  Matrix product = identity(topology.workers);
  for (int round = 0; round < topology.period(); ++round)
    product = times(matrix_of(topology, round), product);
  return product;
}

// All eigenvalues of a symmetric matrix, by Jacobi's rotations.
double largest_eigenvalue(Matrix a) {
  const std::size_t n = a.size();
  for (int sweep = 0; sweep < 50; ++sweep) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (std::abs(a[p][q]) < 1e-300) continue;
        const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
        const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::hypot(theta, 1));
        const double c = 1 / std::hypot(t, 1), s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double kp = a[k][p], kq = a[k][q];
          a[k][p] = c * kp - s * kq, a[k][q] = s * kp + c * kq;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double pk = a[p][k], qk = a[q][k];
          a[p][k] = c * pk - s * qk, a[q][k] = s * pk + c * qk;
        }
      }
    }
  }
  double largest = a[0][0];
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, a[i][i]);
  return largest;
}

double singular_value_but_the_mean(const Topology& topology) {
  Matrix p = product_of_period(topology);
  for (auto& row : p) {
    for (double& value : row) value -= 1.0 / topology.workers;
  }
  return std::sqrt(std::max(0.0, largest_eigenvalue(times(transposed(p), p))));
}

// Every scheme, for all valid numbers of workers and nodes up to `most`.
template <typename Check>
void for_all(int most, Check check) {
  int checked = 0;
  for (const auto& scheme : topology_schemes()) {
    for (int workers = 2; workers <= most; ++workers) {
      for (const int per_node : {1, 2, 3, 4, 8}) {
        if ((per_node > 1) != scheme.uses_nodes || !scheme.fits(workers, per_node)) continue;
        SCOPED_TRACE(std::string(scheme.name) + " of " + std::to_string(workers) + " with " +
                     std::to_string(per_node) + " on a node");
        check(make_topology(scheme.name, workers, per_node));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, most);
}

TEST(Topology, Complete) {
  EXPECT_EQ(make_topology("complete", 3, 1).rounds, (std::vector<Round>{{{0, 1, 2}}}));
}

TEST(Topology, RingTakesOneNeighbourThenTheOther) {
  EXPECT_EQ(make_topology("ring", 6, 1).rounds,
            (std::vector<Round>{{{0, 1}, {2, 3}, {4, 5}}, {{0, 5}, {1, 2}, {3, 4}}}));
  EXPECT_EQ(make_topology("ring", 2, 1).rounds, (std::vector<Round>{{{0, 1}}, {{0, 1}}}));
}

TEST(Topology, ExponentialDoublesTheDistance) {
  EXPECT_EQ(make_topology("exp", 8, 1).rounds, (std::vector<Round>{{{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                                                                   {{0, 2}, {1, 3}, {4, 6}, {5, 7}},
                                                                   {{0, 4}, {1, 5}, {2, 6}, {3, 7}}}));
}

// Four nodes: {0} {1} {2,3}; {0,1} {2} {3}; {0} {2} {1,3}; {0,2} {1} {3}, with two workers on each.
TEST(Topology, AlternatingOfFourNodes) {
  EXPECT_EQ(make_topology("alternating-exp-ring", 8, 2).rounds,
            (std::vector<Round>{{{0, 1}, {2, 3}, {4, 5, 6, 7}},
                                {{0, 1, 2, 3}, {4, 5}, {6, 7}},
                                {{0, 1}, {2, 3, 6, 7}, {4, 5}},
                                {{0, 1, 4, 5}, {2, 3}, {6, 7}}}));
}

// With two nodes there is one pair, with eight there are four per distance.
TEST(Topology, AlternatingOfTwoAndEightNodes) {
  const auto two = make_topology("alternating-exp-ring", 4, 2);
  EXPECT_EQ(two.rounds, (std::vector<Round>{{{0, 1}, {2, 3}}, {{0, 1, 2, 3}}}));
  const auto eight = make_topology("alternating-exp-ring", 16, 2);
  ASSERT_EQ(eight.period(), 6);
  // Distance 4: pairs (0,4) (1,5) (2,6) (3,7) have the numbers 8 to 11, so even ones are alone first.
  EXPECT_EQ(eight.rounds[4], (Round{{0, 1}, {2, 3, 10, 11}, {4, 5}, {6, 7, 14, 15}, {8, 9}, {12, 13}}));
}

TEST(Topology, PeriodsAreAsInTheTable) {
  EXPECT_EQ(make_topology("complete", 64, 1).period(), 1);
  EXPECT_EQ(make_topology("ring", 64, 1).period(), 2);
  EXPECT_EQ(make_topology("exp", 64, 1).period(), 6);
  EXPECT_EQ(make_topology("alternating-exp-ring", 64, 8).period(), 6);
}

TEST(Topology, EveryWorkerIsInOneGroupOfEveryRound) {
  for_all(64, [](const Topology& topology) {
    for (int round = 0; round < topology.period(); ++round) {
      std::set<int> seen;
      int last = -1;
      for (const auto& group : topology.rounds[round]) {
        EXPECT_GT(group.front(), last) << "groups are ordered by their first members";
        EXPECT_TRUE(std::ranges::is_sorted(group));
        last = group.front();
        for (const int worker : group) {
          EXPECT_TRUE(seen.insert(worker).second) << worker;
          EXPECT_EQ(&topology.group_of(worker, round + 3 * topology.period()), &group);
        }
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(topology.workers));
      EXPECT_EQ(*seen.rbegin(), topology.workers - 1);
    }
  });
}

// A row is k numbers 1/k, each rounded by at most 2^-53 / k; their sum is off by at most k roundings of
// 2^-53.
TEST(Topology, EveryMatrixIsSymmetricAndDoublyStochastic) {
  for_all(32, [](const Topology& topology) {
    for (int round = 0; round < topology.period(); ++round) {
      const auto w = matrix_of(topology, round);
      EXPECT_EQ(w, transposed(w));
      for (const auto& row : w) {
        double sum = 0;
        for (const double value : row) {
          EXPECT_GE(value, 0);
          sum += value;
        }
        EXPECT_NEAR(sum, 1, topology.workers * 0x1p-52);
      }
    }
    const auto facts = facts_of(topology);
    EXPECT_TRUE(facts.symmetric);
    EXPECT_TRUE(facts.doubly_stochastic);
  });
}

// The exact average of any start is reached in the round that the facts name, if that is in the first period.
// A mean of k numbers below 1 is off by k roundings of 2^-53, and every round averages the errors of the last
// one.
TEST(Topology, TheAverageIsReachedInTheRoundThatTheFactsName) {
  for_all(64, [](const Topology& topology) {
    const int n = topology.workers;
    std::vector<double> x(static_cast<std::size_t>(n));
    double mean = 0;
    for (int i = 0; i < n; ++i)
      mean += (x[i] = to_unit(philox({1, 2}, {static_cast<std::uint32_t>(i), 0, 0, 0}))) / n;
    const double rounding = (topology.period() + 1) * n * 0x1p-53;
    int reached = 0;
    for (int step = 0; step < topology.period() && reached == 0; ++step) {
      mix(topology, step, x);
      if (std::ranges::all_of(x, [&](double value) { return std::abs(value - mean) <= rounding; }))
        reached = step + 1;
    }
    const auto facts = facts_of(topology);
    EXPECT_EQ(reached, facts.rounds_to_average > topology.period() ? 0 : facts.rounds_to_average);
    if (reached > 0) {
      EXPECT_EQ(facts.spectral_gap, 1);
      EXPECT_EQ(facts.consensus_decay, 0);
    }
  });
}

TEST(Topology, ExponentialOnesReachTheExactAverageInAPeriod) {
  for (const auto* name : {"complete", "exp", "alternating-exp-ring"}) {
    const auto topology = make_topology(name, 64, 8);
    EXPECT_EQ(facts_of(topology).rounds_to_average, topology.period()) << name;
  }
}

TEST(Topology, ARingNeverReachesIt) {
  const auto facts = facts_of(make_topology("ring", 8, 1));
  EXPECT_EQ(facts.rounds_to_average, 0);
  EXPECT_EQ(facts.rounds_tried, 2 * 7);
  // With four or two workers it does: two rounds of pairs include all.
  EXPECT_EQ(facts_of(make_topology("ring", 4, 1)).rounds_to_average, 2);
  EXPECT_EQ(facts_of(make_topology("ring", 2, 1)).rounds_to_average, 1);
}

// Both come from about n steps of arithmetic in double on numbers below 1: 64 * 2^-53 per element, and the
// root of an eigenvalue of that error, where it is not small itself.
TEST(Topology, TheGapIsThatOfTheDenseMatrix) {
  for_all(24, [](const Topology& topology) {
    const double dense = singular_value_but_the_mean(topology);
    const auto facts = facts_of(topology);
    EXPECT_NEAR(1 - facts.spectral_gap, dense, dense > 0.01 ? 1e-12 : 1e-6);
    EXPECT_NEAR(std::pow(facts.consensus_decay, topology.period()), dense, dense > 0.01 ? 1e-12 : 1e-6);
  });
}

// After the first round, values are constant on its pairs: a_j on pair j of n / 2. The second round averages
// neighbouring pairs. The slowest wave, a_j = exp(4 pi i j / n), keeps cos(2 pi / n) of its length.
TEST(Topology, TheGapOfALargeRing) {
  const int n = 4096;
  const auto facts = facts_of(make_topology("ring", n, 1));
  const double wave = std::cos(2 * M_PI / n);
  EXPECT_NEAR(facts.spectral_gap, 1 - wave, 1e-3 * (1 - wave));
}

TEST(Topology, WorkersThatNeverMeetNeverAgree) {
  const Topology apart{"apart", 4, {{{0, 1}, {2, 3}}}};
  const auto facts = facts_of(apart);
  EXPECT_TRUE(facts.doubly_stochastic);
  EXPECT_EQ(facts.rounds_to_average, 0);
  EXPECT_NEAR(facts.spectral_gap, 0, 1e-12);
}

// The checks detect rounds that are not a partition.
TEST(Topology, FactsOfWhatIsNoPartition) {
  const auto in_two = facts_of({"in two", 3, {{{0, 1}, {1, 2}}}});
  EXPECT_FALSE(in_two.symmetric);
  EXPECT_FALSE(in_two.doubly_stochastic);
  const auto twice = facts_of({"twice", 2, {{{0, 0}, {1}}}});
  EXPECT_FALSE(twice.doubly_stochastic);
  const auto beyond = facts_of({"beyond", 2, {{{0, 2}}}});
  EXPECT_FALSE(beyond.doubly_stochastic);
  EXPECT_TRUE(facts_of({"missing", 3, {{{0, 1}}}}).doubly_stochastic)
      << "a worker in no group stays as it is";
  EXPECT_THROW((Topology{"missing", 3, {{{0, 1}}}}).group_of(2, 0), Error);
}

TEST(Topology, OneWorkerIsAlone) {
  for (const auto& name : topology_names()) {
    const auto topology = make_topology(name, 1, 1);
    EXPECT_EQ(topology.rounds, (std::vector<Round>{{{0}}}));
    const auto facts = facts_of(topology);
    EXPECT_EQ(facts.rounds_to_average, 1);
    EXPECT_EQ(facts.spectral_gap, 1);
  }
}

TEST(Topology, WhatHasNoMeaningIsRefused) {
  const auto refused = [](const char* name, int workers, int per_node, auto words) {
    EXPECT_THAT([=] { make_topology(name, workers, per_node); }, ThrowsMessage<UserError>(words));
  };
  refused("ring", 5, 1, HasSubstr("ring needs an even number of workers, not 5; 4 or 6 workers would do"));
  refused("exp", 6, 1, HasSubstr("exp needs a power of two workers, not 6; 4 or 8 workers would do"));
  refused("alternating-exp-ring", 12, 4,
          AllOf(HasSubstr("a power of two nodes"), HasSubstr("not 12 workers with 4 on a node"),
                HasSubstr("8 or 16 workers would do")));
  refused("alternating-exp-ring", 8, 8, HasSubstr("; 16 workers would do"));
  refused("alternating-exp-ring", 10, 4, HasSubstr("8 or 16 workers would do"));
  for (const int per_node : {0, 1}) {
    EXPECT_THROW(make_topology("alternating-exp-ring", 8, per_node), NodesMissing) << per_node;
  }
  refused("expp", 8, 1, HasSubstr("did you mean exp?"));
  refused("hypercube-of-stars", 8, 1, HasSubstr("complete, ring, exp, alternating-exp-ring"));
  refused("exp", 0, 1, HasSubstr("0 workers"));
  std::vector<double> x(3);
  EXPECT_THROW(mix(make_topology("ring", 4, 1), 0, x), Error);
}

// 65,536 workers: the properties are computed without a matrix.
TEST(Topology, TensOfThousandsOfWorkers) {
  const auto facts = facts_of(make_topology("alternating-exp-ring", 1 << 16, 8));
  EXPECT_TRUE(facts.doubly_stochastic);
  EXPECT_EQ(facts.rounds_to_average, 2 * 13);
}

}  // namespace
}  // namespace test
}  // namespace shoal
