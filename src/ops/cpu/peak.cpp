// Two limits of the processor. The peak of multiply-adds per second is that of independent chains in
// registers, without loads or stores. The other limit is the rate at which memory is read.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/clock.h"
#include "core/cores.h"
#include "ops/cpu/amx.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

constexpr int kChains = 12;  // more than latency times throughput of any current core

void float_chains(std::int64_t rounds) {
  Vec sums[kChains] = {};
  for (auto& sum : sums) asm volatile("" : "+" SHOAL_REGISTER(sum));  // equal chains must not be merged
  Vec x = splat(1.0001f), y = splat(0.9f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(""
                 : "+" SHOAL_REGISTER(x),
                   "+" SHOAL_REGISTER(y));  // keeps the compiler from folding the sum
#pragma GCC unroll 12
    for (auto& sum : sums) sum = fma(sum, x, y);
  }
  for (auto& sum : sums) asm volatile("" ::SHOAL_REGISTER(sum));
}

#ifdef __AVX512BF16__
// Four tiles of sums, as in the tile kernel.
constexpr double kFlopsPerTileRound = 4 * 2.0 * kTileRows * kTileUnits * (2 * kTileUnits);
void tile_chains(std::int64_t rounds) {
  Tiles tiles;
  tiles.shape(2 * kTileRows);
  std::array<bfloat16, 2 * kTileRows * kTileUnits> numbers;  // of both signs: zeros would cost less power
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = from_float<bfloat16>(static_cast<float>(i * 37 % 101) / 50.0f - 1.0f);
  zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
  load_tile<4>(numbers.data(), 64), load_tile<5>(numbers.data(), 64);
  load_tile<6>(numbers.data(), 64), load_tile<7>(numbers.data(), 64);
  for (std::int64_t i = 0; i < rounds; ++i) {
    multiply_tiles<0, 4, 6>();
    multiply_tiles<1, 4, 7>();
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
  }
}

void bfloat16_chains(std::int64_t rounds) {
  __m512 sums[kChains] = {};
  for (auto& sum : sums) asm volatile("" : "+" SHOAL_REGISTER(sum));
  auto x = (__m512bh)splat(1.0001f), y = (__m512bh)splat(0.9f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+" SHOAL_REGISTER(x), "+" SHOAL_REGISTER(y));
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, x, y);
  }
  for (auto& sum : sums) asm volatile("" ::SHOAL_REGISTER(sum));
}
#endif

constexpr int kAttempts = 6;  // the best counts: other load can only slow the machine down
// Further attempts follow, for kPatience seconds at most, while a thread among all reaches less than kEnough
// of what it reaches alone: two cores of a virtual machine may be one of the host's for a while.
constexpr double kEnough = 0.9, kPatience = 0.3;

}  // namespace

double CpuBackend::measure_peak_flops([[maybe_unused]] DType compute) {
  void (*chains)(std::int64_t) = float_chains;
  double flops_per_round = 2.0 * kChains * kLanes;
  std::int64_t rounds = 1'000'000;  // 1 to 2 ms: the threads begin within some us of each other
#ifdef __AVX512BF16__
  if (compute == DType::bf16) {
    chains = bfloat16_chains;
    flops_per_round *= 2;
    if (level_ == CpuLevel::amx) {
      chains = tile_chains;
      flops_per_round = kFlopsPerTileRound;
      rounds /= 10;
    }
  }
#endif  // without bfloat16 instructions, products run in float32
  const auto measure = [&](int threads) {
    const Stopwatch watch;
    team_.run(threads, [&](std::int64_t, int) { chains(rounds); });
    return flops_per_round * static_cast<double>(rounds) * threads / watch.seconds();
  };
  const Stopwatch watch;
  const double enough = kEnough * measure(1) * team_.size();
  double best = 0;
  for (int attempt = 0; attempt < kAttempts || (best < enough && watch.seconds() < kPatience); ++attempt)
    best = std::max(best, measure(team_.size()));
  return best;
}

double CpuBackend::measure_read_bandwidth() {
  constexpr std::int64_t kBlock = std::int64_t{1} << 19;
  const auto bytes =
      static_cast<std::size_t>(std::clamp<std::int64_t>(2 * cache_bytes(3), 256 << 20, 1 << 30));
  const auto count = static_cast<std::int64_t>(bytes / sizeof(float) / kBlock) * kBlock;
  const std::unique_ptr<void, decltype(&std::free)> memory(allocate(bytes), &std::free);
  const auto* floats = static_cast<const float*>(memory.get());
  double best = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Stopwatch watch;
    for_blocks(team_, count, kBlock, [&](std::int64_t begin, std::int64_t end) {
      std::array<Vec, 4> sums = {};
      for (std::int64_t at = begin; at < end; at += 4 * kLanes)
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] += load(floats + at + static_cast<std::int64_t>(i) * kLanes);
      for (auto& sum : sums) asm volatile("" ::"m"(sum));  // the sums are not used
    });
    best = std::max(best, static_cast<double>(count) * sizeof(float) / watch.seconds());
  }
  return best;
}

}  // namespace shoal::cpu
