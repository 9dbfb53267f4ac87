// The most multiply-adds per second that the cores can do: independent chains in registers, nothing loaded or
// stored.
#include <algorithm>
#include <array>

#include "core/clock.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

// A vector that is one register here, and the constraint that asks the compiler for one.
#if defined(__AVX512F__)
typedef float Register __attribute__((vector_size(64)));
#define SHOAL_REGISTER "v"
#elif defined(__AVX__)
typedef float Register __attribute__((vector_size(32)));
#define SHOAL_REGISTER "x"
#elif defined(__aarch64__)
typedef float Register __attribute__((vector_size(16)));
#define SHOAL_REGISTER "w"
#else
typedef float Register __attribute__((vector_size(16)));
#define SHOAL_REGISTER "x"
#endif

constexpr int kChains = 12;  // more than latency times throughput of any current core

void float_chains(std::int64_t rounds) {
  Register sums[kChains] = {};
  for (auto& sum : sums) asm volatile("" : "+" SHOAL_REGISTER(sum));  // equal chains must not be merged
  Register x = Register{} + 1.0001f, y = Register{} + 0.9f;
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile(""
                 : "+" SHOAL_REGISTER(x),
                   "+" SHOAL_REGISTER(y));  // keeps the compiler from doing the sum in its head
#pragma GCC unroll 12
    for (auto& sum : sums) sum = sum * x + y;
  }
  for (auto& sum : sums) asm volatile("" ::SHOAL_REGISTER(sum));
}

#ifdef __AVX512BF16__
void bfloat16_chains(std::int64_t rounds) {
  __m512 sums[kChains] = {};
  for (auto& sum : sums) asm volatile("" : "+v"(sum));
  auto x = (__m512bh)splat(1.0001f), y = (__m512bh)splat(0.9f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x), "+v"(y));
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, x, y);
  }
  for (auto& sum : sums) asm volatile("" ::"v"(sum));
}
#endif

}  // namespace

double CpuBackend::measure_peak_flops(DType compute) {
  void (*chains)(std::int64_t) = float_chains;
  double flops_per_round = 2.0 * kChains * (sizeof(Register) / sizeof(float));
#ifdef __AVX512BF16__
  if (compute == DType::bf16) {
    chains = bfloat16_chains;
    flops_per_round *= 2;
  }
#else
  (void)compute;  // without bfloat16 instructions its products run as float32
#endif
  constexpr std::int64_t kRounds = 1'000'000;
  double best = 0;
  // The best of several, since a busy machine can only be slower than it is.
  for (int attempt = 0; attempt < 6; ++attempt) {
    Stopwatch watch;
#pragma omp parallel num_threads(threads_)
    chains(kRounds);
    best = std::max(best, flops_per_round * static_cast<double>(kRounds) * threads_ / watch.seconds());
  }
  return best;
}

}  // namespace shoal::cpu
