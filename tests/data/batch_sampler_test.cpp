#include "data/batch_sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/philox.h"
#include "data/batch_loader.h"
#include "data/permutation.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file whose token at position i is i.
class SamplerTest : public ::testing::Test {
 protected:
  TokenFile counting(std::int64_t size) const {
    std::vector<std::uint16_t> ids(static_cast<std::size_t>(size));
    std::iota(ids.begin(), ids.end(), std::uint16_t{0});
    return TokenFile(folder.write_ids("count" + std::to_string(size) + ".bin", ids), 2);
  }
  TempFolder folder;
};

std::vector<std::int32_t> tokens_of(const BatchSampler& sampler, std::int64_t step, std::int64_t first,
                                    std::int64_t samples, std::int64_t global_batch) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples * sampler.block_size())), targets(tokens);
  sampler.fill(step, first, samples, global_batch, tokens.data(), targets.data());
  return tokens;
}

TEST_F(SamplerTest, TargetsAreTheNextTokens) {
  const auto file = counting(1000);
  for (const auto mode : {Sampling::random, Sampling::epochs}) {
    const BatchSampler sampler(file, 16, mode, 1);
    std::vector<std::int32_t> tokens(4 * 16), targets(4 * 16);
    sampler.fill(3, 2, 4, 8, tokens.data(), targets.data());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(targets[i], tokens[i] + 1);
      if (i % 16 > 0) {
        EXPECT_EQ(tokens[i], tokens[i - 1] + 1);
      }
    }
  }
}

TEST_F(SamplerTest, DoesNotDependOnHowABatchIsDivided) {
  const auto file = counting(5000);
  for (const auto mode : {Sampling::random, Sampling::epochs}) {
    const BatchSampler sampler(file, 8, mode, 42);
    const auto whole = tokens_of(sampler, 7, 0, 12, 12);
    for (const std::int64_t part : {1, 2, 3, 4, 6}) {
      std::vector<std::int32_t> joined;
      for (std::int64_t first = 0; first < 12; first += part) {
        const auto piece = tokens_of(sampler, 7, first, part, 12);
        joined.insert(joined.end(), piece.begin(), piece.end());
      }
      EXPECT_EQ(joined, whole);
    }
    EXPECT_NE(tokens_of(sampler, 8, 0, 12, 12), whole);
    EXPECT_NE(tokens_of(BatchSampler(file, 8, mode, 43), 7, 0, 12, 12), whole);
  }
}

// Evaluation windows are addressed by seed, split and index, independent of training windows.
TEST_F(SamplerTest, EvaluationWindowsDependOnSeedSplitAndIndexAlone) {
  const auto file = counting(5000);
  const auto starts = [&](std::string_view split, std::uint64_t seed) {
    const EvaluationSampler sampler(file, split, 8, seed);
    std::vector<std::int64_t> found;
    for (std::int64_t index = 0; index < 50; ++index) found.push_back(sampler.start(index));
    return found;
  };
  const auto val = starts("val", 1);
  EXPECT_EQ(starts("val", 1), val);
  EXPECT_NE(starts("train", 1), val);
  EXPECT_NE(starts("val", 2), val);
  const BatchSampler train(file, 8, Sampling::random, 1);
  std::vector<std::int64_t> trained;
  for (std::int64_t sample = 0; sample < 50; ++sample) trained.push_back(train.start(0, sample, 50));
  EXPECT_NE(trained, val);
  EXPECT_EQ(std::ranges::count_if(val, [](auto start) { return start < 0 || start > 5000 - 9; }), 0);
  EXPECT_GT(std::set<std::int64_t>(val.begin(), val.end()).size(), 40u);

  const EvaluationSampler sampler(file, "val", 8, 1);
  std::vector<std::int32_t> tokens(8), targets(8);
  sampler.fill(7, tokens.data(), targets.data());
  for (std::int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(tokens[static_cast<std::size_t>(i)], val[7] + i);
    EXPECT_EQ(targets[static_cast<std::size_t>(i)], val[7] + i + 1);
  }
}

TEST_F(SamplerTest, RandomStartsAreUniformOverAllWindows) {
  const auto file = counting(20);
  const BatchSampler sampler(file, 10, Sampling::random, 5);
  constexpr int kStarts = 10, kDraws = 20'000;  // starts 0 .. 9: the last window's last target is token 19
  std::vector<int> seen(kStarts, 0);
  for (std::int64_t i = 0; i < kDraws; ++i) {
    const auto start = sampler.start(i / 50, i % 50, 50);
    ASSERT_GE(start, 0);
    ASSERT_LT(start, kStarts);
    ++seen[static_cast<std::size_t>(start)];
  }
  // A count is binomial with p = 1/10: five standard deviations are sqrt(20000 * 0.09) * 5 = 212.
  for (const int count : seen) EXPECT_NEAR(count, kDraws / kStarts, 212);
}

TEST_F(SamplerTest, AnEpochHasEveryWindowOnceAndTheNextAnotherOrder) {
  const auto file = counting(1 + 37 * 4 + 3);
  const BatchSampler sampler(file, 4, Sampling::epochs, 9);
  ASSERT_EQ(count_windows(file.size(), 4), 37);
  std::vector<std::vector<std::int64_t>> epochs(3);
  for (std::int64_t i = 0; i < 3 * 37; ++i) {  // global batch 5 does not divide an epoch
    epochs[static_cast<std::size_t>(i / 37)].push_back(sampler.start(i / 5, i % 5, 5));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (auto& epoch : epochs) {
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
    std::sort(epoch.begin(), epoch.end());
    for (std::size_t i = 0; i < epoch.size(); ++i) EXPECT_EQ(epoch[i], static_cast<std::int64_t>(4 * i));
  }
}

// Files whose tokens tell them apart. A count is binomial: five standard deviations of the larger share are
// 5 sqrt(20000 * 0.21) = 325.
TEST_F(SamplerTest, DrawsFromFilesByTheirWeights) {
  const auto first = counting(500), second = counting(90);
  const auto third = TokenFile(folder.write_ids("high.bin", std::vector<std::uint16_t>(50, 60'000)), 2);
  const BatchSampler sampler({{&first, 0.7}, {&second, 0}, {&third, 0.3}}, 8, Sampling::random, 5);
  constexpr std::int64_t kBatch = 100, kSteps = 200;
  std::int64_t of_third = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto tokens = tokens_of(sampler, step, 0, kBatch, kBatch);
    for (std::int64_t i = 0; i < kBatch; ++i) {
      EXPECT_NE(sampler.source(step, i), 1u);
      const bool high = tokens[static_cast<std::size_t>(8 * i)] == 60'000;
      EXPECT_EQ(sampler.source(step, i) == 2, high);
      of_third += high;
    }
  }
  EXPECT_NEAR(static_cast<double>(of_third), 0.3 * kBatch * kSteps, 325);
  // One file is drawn from as without weights.
  const BatchSampler one({{&first, 1}}, 8, Sampling::random, 5), plain(first, 8, Sampling::random, 5);
  EXPECT_EQ(tokens_of(one, 3, 0, 16, 16), tokens_of(plain, 3, 0, 16, 16));
}

// A run that goes on with a later program draws as the one that began it: from the Philox blocks of the
// sample and the step, 0 for the window and 1 for the file.
TEST_F(SamplerTest, ARunGoesOnWithTheSameDraws) {
  const auto first = counting(500), second = counting(90);
  constexpr std::uint64_t kSeed = 5;
  const BatchSampler sampler({{&first, 0.7}, {&second, 0.3}}, 8, Sampling::random, kSeed);
  const auto key = philox_key(kSeed, PhiloxStream::batch);
  for (std::uint32_t sample = 0; sample < 20; ++sample) {
    constexpr std::uint64_t kStep = (std::uint64_t{3} << 32) + 7;
    const bool drawn = philox(key, {sample, 1, 7, 3})[0] * 0x1p-32 >= 0.7;
    EXPECT_EQ(sampler.source(kStep, sample), drawn ? 1u : 0u) << sample;
    const auto windows = static_cast<std::uint64_t>((drawn ? 90 : 500) - 8);
    const auto start = to_below(philox(key, {sample, 0, 7, 3}), windows);
    EXPECT_EQ(tokens_of(sampler, kStep, sample, 1, 100)[0], static_cast<std::int32_t>(start)) << sample;
  }
}

// minGPT's data set has len(data) - block_size sequences, one from each of the first positions.
TEST_F(SamplerTest, AStrideSaysWhereTheWindowsOfAnEpochStart) {
  const auto file = counting(64);
  struct Case {
    std::int64_t block, stride, windows;
  };
  for (const auto& [block, stride, windows] :
       {Case{16, 1, 48}, {16, 3, 16}, {16, 5, 10}, {16, 16, 3}, {16, 20, 3}, {16, 100, 1}, {63, 1, 1}}) {
    const BatchSampler sampler(file, block, Sampling::epochs, 9, stride);
    ASSERT_EQ(count_windows(file.size(), block, stride), windows) << block << " " << stride;
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 0; i < windows; ++i) starts.push_back(sampler.start(0, i, windows));
    std::sort(starts.begin(), starts.end());
    for (std::size_t i = 0; i < starts.size(); ++i) {
      EXPECT_EQ(starts[i], static_cast<std::int64_t>(i) * stride);
    }
    EXPECT_LE(starts.back() + block + 1, file.size());
    EXPECT_GT(starts.back() + stride + block + 1, file.size());  // one more would not fit
  }
  EXPECT_EQ(count_windows(64, 64), 0);
}

TEST_F(SamplerTest, TheStrideOfNoneIsTheBlock) {
  const auto file = counting(1 + 37 * 4 + 3);
  const BatchSampler none(file, 4, Sampling::epochs, 9), block(file, 4, Sampling::epochs, 9, 4);
  EXPECT_EQ(tokens_of(none, 0, 0, 80, 80), tokens_of(block, 0, 0, 80, 80));
  // The default order, which must never change.
  const Permutation order(37, 9, 0);
  for (std::int64_t i = 0; i < 37; ++i) {
    EXPECT_EQ(none.start(0, i, 80), static_cast<std::int64_t>(order(static_cast<std::uint64_t>(i))) * 4);
  }
}

TEST_F(SamplerTest, RefusesASplitShorterThanABlock) {
  const auto file = counting(64);
  EXPECT_NO_THROW(BatchSampler(file, 63, Sampling::random, 0));
  for (const auto mode : {Sampling::random, Sampling::epochs}) {
    EXPECT_THAT(user_error([&] { BatchSampler(file, 64, mode, 0); }),
                AllOf(HasSubstr("count64.bin"), HasSubstr("64"), HasSubstr("65"), HasSubstr("a block of")));
  }
  const auto one = counting(1);
  EXPECT_THAT(user_error([&] { SequentialSampler(one, 8); }), HasSubstr("needs at least 2"));
}

TEST_F(SamplerTest, SequentialTakesEveryTargetOnce) {
  const auto file = counting(30);
  for (const std::int64_t block : {1, 7, 28, 29, 30, 100}) {
    const SequentialSampler sampler(file, block);
    std::vector<std::int32_t> seen, tokens(static_cast<std::size_t>(block)), targets(tokens);
    for (std::int64_t i = 0; i < sampler.windows(); ++i) {
      const auto valid = sampler.fill(i, tokens.data(), targets.data());
      ASSERT_GT(valid, 0);
      for (std::int64_t t = 0; t < valid; ++t) EXPECT_EQ(targets[t], tokens[t] + 1);
      EXPECT_THAT(std::vector(targets.begin() + valid, targets.end()), Each(-1));
      seen.insert(seen.end(), targets.begin(), targets.begin() + valid);
    }
    std::vector<std::int32_t> expected(29);
    std::iota(expected.begin(), expected.end(), 1);
    EXPECT_EQ(seen, expected) << "block " << block;
  }
}

TEST(ShareOf, NoFileGetsLessThanItsShare) {
  EXPECT_EQ(share_of(200, 0.75), 150);
  EXPECT_EQ(share_of(10, 0.01), 1);
  EXPECT_EQ(share_of(10, 0.51), 6);
}

TEST(Permutation, IsAPermutationOfEverySize) {
  for (std::uint64_t n : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000}) {
    const Permutation order(n, 3, 0);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto value = order(i);
      EXPECT_LT(value, n);
      seen.insert(value);
    }
    EXPECT_EQ(seen.size(), n);
  }
}

TEST(Permutation, LooksRandom) {
  // The mean of i * order(i) over random permutations of 0 .. n-1 is n (n-1)^2 / 4, its variance
  // (n^2 (n+1)^2 (n-1)) / 144; five standard deviations.
  constexpr std::uint64_t n = 5000;
  constexpr double x = n;
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    const Permutation order(n, 11, epoch);
    double sum = 0;
    for (std::uint64_t i = 0; i < n; ++i) sum += static_cast<double>(i * order(i));
    EXPECT_NEAR(sum, x * (x - 1) * (x - 1) / 4, 5 * x * (x + 1) * std::sqrt(x - 1) / 12);
  }
}

TEST(Permutation, HandlesHugeSizes) {
  const std::uint64_t n = (std::uint64_t{1} << 40) + 12345;
  const Permutation order(n, 1, 2);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = n - 1000; i < n; ++i) seen.insert(order(i));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_LT(*seen.rbegin(), n);
}

TEST_F(SamplerTest, LoaderGivesWhatTheSamplerGives) {
  const auto file = counting(5000);
  const BatchSampler sampler(file, 8, Sampling::random, 4);
  // Rank 1 of 2: micro-batches 1 and 3 of the five of a step, then one that does not exist.
  BatchLoader loader(sampler, {.first_step = 5,
                               .last_step = 25,
                               .global_batch = 10,
                               .micro_batch = 2,
                               .first = 1,
                               .stride = 2,
                               .passes = 3});
  for (std::int64_t step = 5; step < 25; ++step) {
    for (const std::int64_t index : {1, 3, 5}) {
      const auto& batch = loader.next();
      EXPECT_EQ(batch.step, step);
      EXPECT_EQ(batch.index, index);
      if (index == 5) {
        EXPECT_EQ(batch.tokens, std::vector<std::int32_t>(16, 0));
        EXPECT_EQ(batch.targets, std::vector<std::int32_t>(16, -1));
        continue;
      }
      EXPECT_EQ(batch.first_sample, 2 * index);
      EXPECT_EQ(batch.tokens, tokens_of(sampler, step, 2 * index, 2, 10));
      EXPECT_EQ(batch.targets[0], batch.tokens[0] + 1);
    }
  }
  EXPECT_THROW(loader.next(), Error);
}

TEST_F(SamplerTest, LoaderStopsCleanlyAtAnyPoint) {
  const auto file = counting(5000);
  const BatchSampler sampler(file, 8, Sampling::epochs, 4);
  for (int taken = 0; taken < 8; ++taken) {
    BatchLoader loader(
        sampler, {.first_step = 0, .last_step = 1000, .global_batch = 4, .micro_batch = 2, .passes = 2});
    for (int i = 0; i < taken; ++i) loader.next();
  }
  BatchLoader nothing(sampler,
                      {.first_step = 3, .last_step = 3, .global_batch = 4, .micro_batch = 2, .passes = 2});
  EXPECT_THROW(nothing.next(), Error);
}

}  // namespace
}  // namespace shoal
