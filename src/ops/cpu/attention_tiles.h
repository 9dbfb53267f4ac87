// Parts of attention's kernels in float32 and in bfloat16: the tiles of a head that the causal mask leaves,
// their dropout, and the softmax of a tile's rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "ops/cpu/philox_simd.h"
#include "ops/cpu/simd.h"
#include "ops/kernels.h"

namespace shoal::cpu {

constexpr std::int64_t kGroup = 6;     // rows of the tile kernel
constexpr std::int64_t kQueries = 48;  // rows of a tile: a multiple of the group
constexpr std::int64_t kKeys = DropoutRow::kColumns;

inline std::int64_t round_up(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct HeadShape {
  std::int64_t positions, heads, channels;
  std::int64_t padded_positions = round_up(positions), padded_channels = round_up(channels);
  std::int64_t matrix() const { return padded_positions * padded_channels; }  // floats of one packed operand
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(channels)); }
};

// Carves a thread's scratch memory.
struct Carver {
  float* at;
  float* take(std::int64_t floats) { return std::exchange(at, at + floats); }
};

// One tile: queries [q0, q0 + rows) against keys [k0, k0 + keys); `width` is keys rounded up to vectors.
struct Tile {
  std::int64_t q0, rows, k0, keys, width;
  // The number of the tile's keys that the query in row i may see.
  std::int64_t visible(std::int64_t i) const { return std::clamp<std::int64_t>(q0 + i + 1 - k0, 0, keys); }
};

// Calls f(tile) for the tiles of a row of queries that the causal mask leaves.
template <typename F>
void for_key_tiles(std::int64_t q0, std::int64_t rows, F&& f) {
  for (std::int64_t k0 = 0; k0 < q0 + rows; k0 += kKeys) {
    const std::int64_t keys = std::min(kKeys, q0 + rows - k0);
    f(Tile{q0, rows, k0, keys, round_up(keys)});
  }
}

// The unmasked part of a tile, in groups of the kernel's six rows.
// f(first query, queries, keys that any of them sees, the same rounded up to the vectors that are read).
template <typename F>
void for_query_groups(const Tile& tile, F&& f) {
  for (std::int64_t i = 0; i < tile.rows; i += kGroup) {
    const std::int64_t n = std::min(kGroup, tile.rows - i), seen = tile.visible(i + n - 1);
    // A group of keys that begins within `seen` is read whole by for_key_groups' products.
    if (seen > 0) f(i, n, seen, std::min(tile.width, round_up(seen + kGroup - 1)));
  }
}
// f(first key, keys, first query that sees any of them)
template <typename F>
void for_key_groups(const Tile& tile, F&& f) {
  for (std::int64_t k = 0; k < tile.keys; k += kGroup) {
    f(k, std::min(kGroup, tile.keys - k), std::max<std::int64_t>(0, tile.k0 + k - tile.q0));
  }
}

class DropoutTile {
 public:
  DropoutTile(const Dropout& dropout, std::int64_t head, std::int64_t batch)
      : dropout_(dropout), mask_(dropout, attention_site(dropout.site, head)), batch_(batch) {}
  bool active() const { return dropout_.active(); }
  DropoutRow::Factors factors(std::int64_t query, std::int64_t k0) const {
    return mask_.factors(dropout_.window.row(batch_, query), k0 / kKeys);
  }

 private:
  const Dropout& dropout_;
  DropoutRow mask_;
  std::int64_t batch_;
};

// Softmax of one row of scores over its visible keys, given the maximum and sum so far; returns the factor
// for earlier results of the row. scores become probabilities times the dropout factor, not yet divided by
// the sum.
inline float softmax_row(float* scores, std::int64_t visible, std::int64_t width, float& most, float& total,
                         const DropoutRow::Factors* factors) {
  const Vec lowest = splat(-std::numeric_limits<float>::infinity());
  Vec row_most = lowest;
  for (std::int64_t k = 0; k < visible; k += kLanes) {
    row_most = max(select(lanes_below(visible - k), load(scores + k), lowest), row_most);
  }
  const float next = std::max(most, max(row_most));
  const float rescale = std::exp(most - next);
  Vec sums{};
  for (std::int64_t k = 0; k < width; k += kLanes) {
    Vec p = select(lanes_below(visible - k), exp(load(scores + k) - next), Vec{});
    sums += p;
    if (factors) p *= (*factors)[static_cast<std::size_t>(k / kLanes)];
    store(scores + k, p);
  }
  total = total * rescale + sum(sums);
  most = next;
  return rescale;
}

// One head of one sequence. Rows of q, k, v, dq, dk, dv lie qkv_stride apart, those of out and dout
// out_stride.
template <typename T>
struct HeadForward {
  T* out;
  float* lse;  // may be null
  const T *q, *k, *v;
  std::int64_t qkv_stride, out_stride;
};
template <typename T>
struct HeadBackward {
  T *dq, *dk, *dv;
  const T *dout, *out;
  const float* lse;
  const T *q, *k, *v;
  std::int64_t qkv_stride, out_stride;
};

// to [T, stride] = rows [T, padded D] * scale, without the padding
template <typename T>
void unpack_rows(T* to, std::int64_t stride, const float* rows, const HeadShape& shape, float scale) {
  for (std::int64_t t = 0; t < shape.positions; ++t) {
    for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
      store_n(to + t * stride + d, load(rows + t * shape.padded_channels + d) * scale, live);
    });
  }
}

// delta [T]: the sum over channels of out * dout, for each query.
template <typename T>
void fill_delta(float* delta, const HeadBackward<T>& head, const HeadShape& shape) {
  for (std::int64_t t = 0; t < shape.positions; ++t) {
    Vec total{};
    for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
      const std::int64_t at = t * head.out_stride + d;
      total += load_n(head.dout + at, live) * load_n(head.out + at, live);
    });
    delta[t] = sum(total);
  }
}

// The kernels of a type; scratch sizes are floats. Where a processor multiplies bfloat16, that type has its
// own (attention_bfloat16.h).
template <typename T>
struct HeadKernels {
  static std::int64_t forward_scratch(const HeadShape& shape);
  static std::int64_t backward_scratch(const HeadShape& shape);
  static void forward(const HeadForward<T>& head, const HeadShape& shape, const DropoutTile& dropout,
                      float* scratch);
  static void backward(const HeadBackward<T>& head, const HeadShape& shape, const DropoutTile& dropout,
                       float* scratch);
};

}  // namespace shoal::cpu
