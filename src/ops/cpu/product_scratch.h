// The memory of oneDNN's products in training beside operands and results (matmul.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/cpu/cpu.h"
#include "ops/cpu/product_pieces.h"

namespace shoal::cpu {

// Bytes of halves of sums, and of all threads' dense copies, at most. `level` leaves the products to oneDNN,
// those of float32's forward passes only below AVX-512.
inline std::size_t product_scratch_bytes(int threads, const KernelSizes& sizes, CpuLevel level) {
  const bool bf16 = sizes.compute == DType::bf16;
  const bool wide = level >= CpuLevel::avx512, avx512 = wide && level != CpuLevel::amx;
  std::int64_t halves = 0, copies = 0;  // floats; copies of one thread
  const auto product = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool forward, bool over_rows) {
    const ProductPieces pieces(m, n, k, over_rows, threads, avx512);
    if (pieces.split()) halves = std::max(halves, m * n);
    // Other products of float32 are our own, or sgemm's, which takes rows of any stride.
    const bool dense = bf16 || (forward && !wide);
    if (!dense || !pieces.parts_of_rows()) return;
    for (std::int64_t i = 0; i < pieces.count(); ++i) {
      const auto piece = pieces[i];
      const std::int64_t right = forward ? 0 : piece.terms * piece.columns;
      copies = std::max(copies, (bf16 ? (right + 1) / 2 : right) + piece.rows * piece.columns);
    }
  };
  const auto layer = [&](std::int64_t out, std::int64_t in, std::int64_t rows) {
    product(rows, out, in, true, false);
    product(rows, in, out, false, false);
    product(out, in, rows, false, sizes.gradients == DType::f32);
  };
  const std::int64_t rows = sizes.batch * sizes.positions, channels = sizes.channels,
                     attended = sizes.heads * sizes.head_size, hidden = 4 * attended;
  layer(3 * attended, channels, rows);
  layer(channels, attended, rows);
  layer(hidden, channels, rows);
  layer(channels, hidden, rows);
  layer(sizes.classes, channels, sizes.logit_rows);
  return static_cast<std::size_t>(halves + threads * copies) * sizeof(float);
}

}  // namespace shoal::cpu
