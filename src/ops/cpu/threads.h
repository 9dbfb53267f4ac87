// Loops shared among OpenMP threads. Work is cut into blocks whose borders depend only on the size, so
// results do not depend on the number of threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace shoal::cpu {

// f(begin, end) over [0, n) in blocks of `block`.
template <typename F>
void for_blocks(int threads, std::int64_t n, std::int64_t block, F&& f) {
  const std::int64_t blocks = (n + block - 1) / block;
  if (blocks <= 1 || threads == 1) {
    for (std::int64_t begin = 0; begin < n; begin += block) f(begin, std::min(begin + block, n));
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < blocks; ++i) f(i * block, std::min((i + 1) * block, n));
}

// f(i) over [0, n), for tasks of unequal length.
template <typename F>
void for_tasks(int threads, std::int64_t n, F&& f) {
  if (n <= 1 || threads == 1) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (std::int64_t i = 0; i < n; ++i) f(i);
}

// The rows that have about 16 Ki elements: enough work to wake a thread.
inline std::int64_t rows_per_block(std::int64_t columns) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1));
}

}  // namespace shoal::cpu
