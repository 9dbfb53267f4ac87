// Parts of attention's kernels: the tiles of a head that the causal mask leaves, their dropout, and the
// softmax of a tile's rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "ops/cpu/philox_simd.h"
#include "ops/cpu/tile.h"
#include "ops/kernels.h"

namespace shoal::cpu {

constexpr std::int64_t kQueries = 96;  // rows of a tile: a multiple of those that are multiplied at a time
constexpr std::int64_t kKeys = DropoutRow::kColumns;

struct HeadShape {
  std::int64_t positions, heads, channels;
  std::int64_t whole = kLanes;  // the padded numbers are multiples of it
  std::int64_t padded_positions = count_of(positions, whole) * whole,
               padded_channels = count_of(channels, whole) * whole;
  std::int64_t matrix() const { return padded_positions * padded_channels; }  // floats of one packed operand
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(channels)); }
};

// The head of a task, and where it begins in tensors [B, T, 3, H, D] and [B, T, H, D].
struct HeadPlace {
  HeadPlace(const HeadShape& shape, std::int64_t task)
      : sequence(task / shape.heads),
        head(task % shape.heads),
        qkv((3 * sequence * shape.positions * shape.heads + head) * shape.channels),
        out((sequence * shape.positions * shape.heads + head) * shape.channels) {}
  std::int64_t sequence, head, qkv, out;
};

// From one thread's scratch memory of so many floats to the next one's: a page lies between them, since a
// processor fetches ahead within a page, and would take what the other thread writes.
inline std::int64_t floats_apart(std::int64_t floats) { return round_up(floats) + 1024; }

// Carves a thread's scratch memory.
struct Carver {
  float* at;
  float* take(std::int64_t floats) { return std::exchange(at, at + floats); }
};

// One tile: queries [q0, q0 + rows) against keys [k0, k0 + keys); `width` is keys rounded up to whole ones.
struct Tile {
  std::int64_t q0, rows, k0, keys, width;
  // The number of keys from k0 on that the query in row i may see: negative before them, and more than the
  // tile has behind it.
  std::int64_t seen(std::int64_t i) const { return q0 + i + 1 - k0; }
};

// Calls f(tile) for the tiles of up to `most` keys of a row of queries that the causal mask leaves. Keys are
// rounded up to multiples of kWhole.
template <std::int64_t kWhole, typename F>
void for_key_tiles(std::int64_t q0, std::int64_t rows, std::int64_t most, F&& f) {
  for (std::int64_t k0 = 0; k0 < q0 + rows; k0 += most) {
    const std::int64_t keys = std::min(most, q0 + rows - k0);
    f(Tile{q0, rows, k0, keys, count_of(keys, kWhole) * kWhole});
  }
}

// The unmasked part of a tile, in groups of kGroup queries or keys.
// f(first query, queries, keys that any of them sees, the same rounded up to those that are read).
template <std::int64_t kGroup, std::int64_t kWhole, typename F>
void for_query_groups(const Tile& tile, F&& f) {
  for (std::int64_t i = 0; i < tile.rows; i += kGroup) {
    const std::int64_t n = std::min(kGroup, tile.rows - i), seen = std::min(tile.seen(i + n - 1), tile.keys);
    // A group of keys that begins within `seen` is read whole by for_key_groups' products.
    if (seen > 0) f(i, n, seen, std::min(tile.width, count_of(seen + kGroup - 1, kWhole) * kWhole));
  }
}
// f(first key, keys, first query that sees any of them)
template <std::int64_t kGroup, typename F>
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
  // The factors of kKeys keys from k0 on, where dropout is active.
  DropoutRow::Factors factors(std::int64_t query, std::int64_t k0) const {
    return mask_.factors(dropout_.window.row(batch_, query), k0 / kKeys);
  }

 private:
  const Dropout& dropout_;
  DropoutRow mask_;
  std::int64_t batch_;
};

// Calls f(k, part) for the vectors of rows from keys k on, before `width`, of which the first row sees `seen`
// keys and each later one a key more: part(row, value, hidden) has `hidden` in place of what the row does not
// see. Rows that lie side by side share loops, whose ends are then guessed better than each row's own.
template <typename F>
void for_seen(std::int64_t seen, std::int64_t width, F&& f) {
  std::int64_t k = 0;
  for (; k + kLanes <= std::min(seen, width); k += kLanes)
    f(k, [](std::int64_t, Vec value, float) { return value; });
  for (; k < width; k += kLanes) {
    f(k, [=](std::int64_t row, Vec value, float hidden) {
      return select(lanes_below(seen + row - k), value, splat(hidden));
    });
  }
}

// Rows of scores: `count` of them, `stride` apart, for the queries from `query` on, with the keys from k0 on.
// The first row sees `seen` of the keys, and each later one a key more.
struct ScoreRows {
  const float* scores;
  std::int64_t stride, count, query, k0, seen, width;
  float scale;
};

// Softmax of up to kRows rows of scores over the keys that they see, given their maxima and sums so far;
// returns the factors for earlier results of the rows. probs, which may be the scores, become probabilities
// times the dropout factors, not yet divided by the sums.
template <int kRows, typename T>
std::array<float, kRows> softmax_rows(T* probs, const ScoreRows& rows, const DropoutTile& dropout,
                                      float* most, float* total) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  // The last row stands for those that are not there.
  std::int64_t row[kRows], at[kRows];
  Vec high[kRows], sums[kRows] = {};
  std::array<float, kRows> next, rescale{};
  for (int r = 0; r < kRows; ++r) {
    row[r] = std::min<std::int64_t>(r, rows.count - 1);
    at[r] = row[r] * rows.stride;
    high[r] = splat(kLowest);
  }
  for_seen(rows.seen, rows.width, [&](std::int64_t k, auto&& part) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec score = load(rows.scores + at[r] + k);
      high[r] = max(part(row[r], score, kLowest), high[r]);
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const auto i = static_cast<std::size_t>(r);
    next[i] = std::max(most[row[r]], max(high[r]) * rows.scale);
    if (rows.k0 > 0) rescale[i] = std::exp(most[row[r]] - next[i]);
  }
  DropoutRow::Factors factors[kRows];
  for_seen(rows.seen, rows.width, [&](std::int64_t k, auto&& part) {
    if (dropout.active() && k % kKeys == 0) {
      for (int r = 0; r < kRows; ++r) factors[r] = dropout.factors(rows.query + row[r], rows.k0 + k);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec below = fma(load(rows.scores + at[r] + k), rows.scale, -next[static_cast<std::size_t>(r)]);
      Vec p = part(row[r], exp(below), 0);
      sums[r] += p;
      if (dropout.active()) p *= factors[r][static_cast<std::size_t>(k % kKeys / kLanes)];
      store(probs + at[r] + k, p);
    }
  });
  for (int r = 0; r < std::min<std::int64_t>(kRows, rows.count); ++r) {
    const auto i = static_cast<std::size_t>(r);
    total[r] = total[r] * rescale[i] + sum(sums[r]);
    most[r] = next[i];
  }
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

// to [n, stride] = rows [n, padded D] * scale, without the padding
template <typename T>
void unpack_rows(T* to, std::int64_t stride, const float* rows, std::int64_t n, const HeadShape& shape,
                 float scale) {
  for (std::int64_t t = 0; t < n; ++t) {
    fetch_later_row<true>(to + t * stride, stride, shape.channels);
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
    fetch_later_row(head.dout + t * head.out_stride, head.out_stride, shape.channels);
    fetch_later_row(head.out + t * head.out_stride, head.out_stride, shape.channels);
    for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
      const std::int64_t at = t * head.out_stride + d;
      total = fma(load_n(head.dout + at, live), load_n(head.out + at, live), total);
    });
    delta[t] = sum(total);
  }
}

}  // namespace shoal::cpu
