// The largest numbers of blocks, of the cpu backend against the oracle.
#include "ops/sparse.h"

#include "ops/conformance.h"

namespace shoal::test {
namespace {

// Blocks, and numbers that are taken of each.
class CpuSparse : public Conformance<std::pair<std::int64_t, std::int64_t>> {
 protected:
  std::int64_t blocks_ = GetParam().first, count_ = GetParam().second, n_ = blocks_ * kSparseBlock;
  // Rounded to few bits, so that some are equal in magnitude, and with zeros.
  Values numbers(std::uint32_t which) const {
    Values x = normal_values(n_, which, DType::bf16);
    for (std::size_t i = 0; i < x.size(); i += 7) x[i] += i % 2 ? 0x1p-12 : 0;
    for (std::size_t i = 0; i < x.size(); i += 5) x[i] = 0;
    return x;
  }
};

TEST_P(CpuSparse, TakesTheLargestAndKeepsTheRest) {
  const Values x = numbers(1);
  const auto run = [&](const Side& side) {
    const Buffer taken = side.ints({blocks_, count_}), rest = side.full({n_}, x);
    side.backend.take_largest(taken, rest);
    return std::array{taken.values(), rest.values()};
  };
  const auto [taken, rest] = run(cpu());
  const auto [expected, expected_rest] = run(oracle());
  EXPECT_TRUE((taken == expected).min());
  EXPECT_TRUE((rest == expected_rest).min()) << "differences of neighbours are exact";

  // The taken numbers and the rest are the whole, and no number of the rest is larger than a taken one.
  Values whole = rest;
  for (std::int64_t block = 0; block < blocks_; ++block) {
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t k = 0; k < count_; ++k) {
      const auto one = static_cast<std::int32_t>(taken[static_cast<std::size_t>(block * count_ + k)]);
      whole[static_cast<std::size_t>(block * kSparseBlock + position_of(one))] += to_float(value_of(one));
      least = std::min<double>(least, std::abs(to_float(value_of(one))));
    }
    const Values left = rest[std::slice(static_cast<std::size_t>(block * kSparseBlock), kSparseBlock, 1)];
    if (count_ == kSparseBlock) continue;
    EXPECT_LE(std::abs(left).max(), least * (1 + 0x1p-7));
  }
  EXPECT_TRUE((whole == x).min());
}

// An addition, and a product before it.
TEST_P(CpuSparse, AddsWhatWasTaken) {
  const Values x = numbers(1), y = numbers(2);
  const auto run = [&](const Side& side) {
    const Buffer taken = side.ints({blocks_, count_}), sum = side.full({n_}, y);
    side.backend.take_largest(taken, side.full({n_}, x));
    side.backend.add_taken(sum, taken, 0.3f);
    return sum.values();
  };
  expect_within(run(cpu()), run(oracle()), gamma(2) * (std::abs(y) + 0.3 * std::abs(x)) + kSmallest);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuSparse,
                         testing::Values(std::pair(1, 1), std::pair(1, 1024), std::pair(3, 20),
                                         std::pair(70, 5)));

}  // namespace
}  // namespace shoal::test
