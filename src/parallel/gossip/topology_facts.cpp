// The facts of a topology, without building its matrices: every round is applied to vectors.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/philox.h"
#include "parallel/gossip/topology.h"

namespace shoal {
namespace {

constexpr PhiloxKey kKey = philox_key(1, PhiloxStream::simulation);
PhiloxBlock random_block(int i) { return philox(kKey, {static_cast<std::uint32_t>(i), 0, 0, 0}); }

// W of a round as it acts: row i is 1 / k for the members of the first group that has worker i, and the
// unit's where none has.
void check_round(const Topology& topology, const Topology::Round& round, TopologyFacts& facts) {
  const auto n = static_cast<std::size_t>(topology.workers);
  std::vector<const Topology::Group*> own(n, nullptr);
  for (const auto& group : round) {
    for (const int i : group) {
      if (i < 0 || i >= topology.workers) {
        facts.symmetric = facts.doubly_stochastic = false;
        return;
      }
      if (!own[i]) own[i] = &group;
    }
  }
  std::vector<double> row(n, 0), column(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    if (!own[i]) row[i] += 1, column[i] += 1;
  }
  for (const auto& group : round) {
    const double weight = 1 / static_cast<double>(group.size());
    const auto rows = std::ranges::count_if(group, [&](int i) { return own[i] == &group; });
    // W_ij = 1 / k where i counts this group as its own, so W_ji must be there too.
    if (rows != 0 && rows != std::ssize(group)) facts.symmetric = false;
    for (const int i : group) {
      if (own[i] == &group) row[i] += 1;  // k times 1 / k
      column[i] += weight * static_cast<double>(rows);
    }
  }
  const auto is_one = [](double sum) { return std::abs(sum - 1) < 1e-9; };
  facts.doubly_stochastic &= std::ranges::all_of(row, is_one) && std::ranges::all_of(column, is_one);
}

// Integers modulo the prime 2^61 - 1: means without rounding, so that "equal" means equal.
constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>(static_cast<uint128>(a) * b % kPrime);
}
std::uint64_t inverse(std::uint64_t a) {  // a^(p - 2)
  std::uint64_t result = 1;
  for (std::uint64_t e = kPrime - 2; e > 0; e /= 2, a = times(a, a)) {
    if (e % 2 == 1) result = times(result, a);
  }
  return result;
}

// Rounds after which a random vector is constant; a product that is not the mean makes it so with a
// probability of about workers / 2^61. 0: not within `most` rounds.
int rounds_to_average(const Topology& topology, int most) {
  std::vector<std::uint64_t> x(static_cast<std::size_t>(topology.workers));
  for (int i = 0; i < topology.workers; ++i) x[i] = to_below(random_block(i), kPrime);
  std::size_t k = 0;
  std::uint64_t one_kth = 0;
  for (int step = 0; step < most; ++step) {
    for (const auto& group : topology.rounds[static_cast<std::size_t>(step % topology.period())]) {
      if (group.size() != k) k = group.size(), one_kth = inverse(k);
      std::uint64_t sum = 0;
      for (const int i : group) sum = (sum + x[i]) % kPrime;
      for (const int i : group) x[i] = times(sum, one_kth);
    }
    if (std::ranges::adjacent_find(x, std::not_equal_to()) == x.end()) return step + 1;
  }
  return 0;
}

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
void add_scaled(std::span<double> y, double factor, std::span<const double> x) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += factor * x[i];
}
void remove_mean(std::span<double> x) {
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  for (double& value : x) value -= mean;
}
void scale(std::span<double> x, double factor) {
  for (double& value : x) value *= factor;
}

// The largest eigenvalue of a symmetric tridiagonal matrix within [0, 2], by bisection on Sturm's count.
double largest_eigenvalue(std::span<const double> diagonal, std::span<const double> beside) {
  const auto has_above = [&](double x) {
    double d = 1;
    for (std::size_t i = 0; i < diagonal.size(); ++i) {
      d = diagonal[i] - x - (i == 0 ? 0 : beside[i - 1] * beside[i - 1] / d);
      if (d > 0) return true;
      if (d == 0) d = -1e-300;
    }
    return false;
  };
  double low = 0, high = 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (has_above(middle) ? low : high) = middle;
  }
  return low;
}

// A random start finds every mode; a slow wave over the workers, the worst one of anything ring-like, makes
// even 65,536 of them converge.
std::vector<double> lanczos_start(int workers) {
  std::vector<double> x(static_cast<std::size_t>(workers));
  for (int i = 0; i < workers; ++i) {
    const double angle = 2 * std::numbers::pi * (i + 0.25) / workers;
    x[i] = std::cos(angle) + std::sin(angle) + 0.1 * to_normal(random_block(i));
  }
  remove_mean(x);
  scale(x, 1 / std::sqrt(dot(x, x)));
  return x;
}

// The largest singular value of a period's product P on vectors without a mean: Lanczos on P^T P with full
// reorthogonalisation, so exact up to rounding after workers - 1 steps, and mostly much earlier; the gap of a
// ring of 65,536 comes out within some per cent.
double largest_singular_value(const Topology& topology) {
  constexpr int kMostVectors = 200, kStill = 5;
  const int most = std::min(topology.workers - 1, kMostVectors);
  std::vector<std::vector<double>> basis{lanczos_start(topology.workers)};
  std::vector<double> diagonal, beside;
  double eigenvalue = 0;
  for (int still = 0; std::ssize(diagonal) < most && still < kStill;) {
    auto next = basis.back();
    for (int round = 0; round < topology.period(); ++round) mix(topology, round, next);
    for (int round = topology.period() - 1; round >= 0; --round) mix(topology, round, next);
    diagonal.push_back(dot(next, basis.back()));
    for (int twice = 0; twice < 2; ++twice) {
      remove_mean(next);
      for (const auto& vector : basis) add_scaled(next, -dot(next, vector), vector);
    }
    const double before = std::exchange(eigenvalue, largest_eigenvalue(diagonal, beside));
    still = std::abs(eigenvalue - before) < 1e-15 ? still + 1 : 0;
    const double length = std::sqrt(dot(next, next));
    if (length < 1e-13) break;  // the basis is closed
    beside.push_back(length);
    scale(next, 1 / length);
    basis.push_back(std::move(next));
  }
  return std::sqrt(eigenvalue);
}

// Powers of P that average exactly do so within workers - 1 periods (P is then nilpotent where the mean is
// 0); as many are tried unless that takes too long.
int rounds_worth_trying(const Topology& topology) {
  constexpr std::int64_t kWork = 50'000'000;
  const std::int64_t period = topology.period(), n = topology.workers;
  return static_cast<int>(
      std::min(period * std::max<std::int64_t>(n - 1, 1), std::max(4 * period, kWork / n)));
}

}  // namespace

TopologyFacts facts_of(const Topology& topology) {
  TopologyFacts facts{.symmetric = true, .doubly_stochastic = true};
  for (const auto& round : topology.rounds) check_round(topology, round, facts);
  if (!facts.symmetric || !facts.doubly_stochastic) return facts;
  facts.rounds_tried = rounds_worth_trying(topology);
  facts.rounds_to_average = rounds_to_average(topology, facts.rounds_tried);
  const bool in_a_period = facts.rounds_to_average > 0 && facts.rounds_to_average <= topology.period();
  const double singular = in_a_period ? 0 : largest_singular_value(topology);
  facts.spectral_gap = 1 - singular;
  facts.consensus_decay = std::pow(singular, 1.0 / topology.period());
  return facts;
}

}  // namespace shoal
