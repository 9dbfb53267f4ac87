// Loops shared by the threads of a team. Work is cut into blocks whose borders depend only on the size, so
// results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/thread_team.h"

namespace shoal::cpu {

// f(begin, end) over [0, n) in blocks of `block`.
template <typename F>
void for_blocks(ThreadTeam& team, std::int64_t n, std::int64_t block, F&& f) {
  team.run((n + block - 1) / block, [&](std::int64_t i, int) { f(i * block, std::min((i + 1) * block, n)); });
}

// The rows that have about 16 Ki elements: enough work to wake a thread.
inline std::int64_t rows_per_block(std::int64_t columns) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1));
}

}  // namespace shoal::cpu
