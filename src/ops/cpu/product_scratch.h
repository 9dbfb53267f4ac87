// The memory of oneDNN's products in training beside operands and results (matmul.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/cpu/product_pieces.h"
#include "ops/kernel_sizes.h"

namespace shoal::cpu {

// Bytes of the halves of weights' gradients, at most.
inline std::size_t product_scratch_bytes(const KernelSizes& sizes) {
  constexpr int kAnyThreads = 1;  // whether a sum is split does not depend on these
  constexpr bool kAnyCut = false;
  std::int64_t halves = 0;  // floats
  const auto layer = [&](std::int64_t out, std::int64_t in, std::int64_t rows) {
    if (ProductPieces(out, in, rows, true, kAnyThreads, kAnyCut).split()) halves = std::max(halves, out * in);
  };
  const std::int64_t rows = sizes.batch * sizes.positions, channels = sizes.channels,
                     attended = sizes.heads * sizes.head_size, hidden = 4 * attended;
  layer(3 * attended, channels, rows);
  layer(channels, attended, rows);
  layer(hidden, channels, rows);
  layer(channels, hidden, rows);
  layer(sizes.classes, channels, sizes.logit_rows);
  return static_cast<std::size_t>(halves) * sizeof(float);
}

}  // namespace shoal::cpu
