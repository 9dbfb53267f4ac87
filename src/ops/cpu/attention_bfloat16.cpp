#include "ops/cpu/attention_bfloat16.h"

#ifdef __AVX512BF16__

#include <cstring>

#include "ops/cpu/tile.h"

namespace shoal::cpu {
namespace {

static_assert(kGroup == kStrip);

constexpr std::int64_t kTile = kQueries * kKeys;
constexpr std::int64_t kStripsOfTile = (kKeys + kStrip - 1) / kStrip;

// Memory of bfloat16 in floats.
std::int64_t in_floats(std::int64_t values) { return (values + 1) / 2; }

// A head's matrix [padded T, padded D] in the orders that products read: rows, pairs of rows, and panels of
// its transpose.
struct HeadMatrix {
  const HeadShape& shape;
  std::int64_t dp = shape.padded_channels, tp = shape.padded_positions;

  bfloat16* take(Carver& carve) const {
    return reinterpret_cast<bfloat16*>(carve.take(in_floats(shape.matrix())));
  }
  void copy(bfloat16* to, const bfloat16* from, std::int64_t stride) const {
    std::memset(to, 0, static_cast<std::size_t>(shape.matrix()) * sizeof *to);
    for (std::int64_t t = 0; t < shape.positions; ++t)
      std::memcpy(to + t * dp, from + t * stride, static_cast<std::size_t>(shape.channels) * sizeof *to);
  }
  // [padded T / 2][padded D]
  Pair* take_pairs(Carver& carve, const bfloat16* rows) const {
    auto* to = reinterpret_cast<Pair*>(take(carve));
    pack_columns(to, rows, dp, dp, tp);
    return to;
  }
  // For each kPanel positions [padded D / 2][up to kPanel].
  Pair* take_transposed(Carver& carve, const bfloat16* rows) const {
    auto* to = reinterpret_cast<Pair*>(take(carve));
    for (std::int64_t t = 0; t < tp; t += kPanel)
      pack_transposed(to + t * dp / 2, rows + t * dp, dp, std::min(kPanel, tp - t), dp);
    return to;
  }

  // scores [rows, columns] = a [rows, padded D] . transposed[first, first + columns), row by row kKeys apart
  void scores(float* to, const bfloat16* a, std::int64_t rows, const Pair* transposed, std::int64_t first,
              std::int64_t columns) const {
    for (std::int64_t j = 0; j < columns; j += kPanel) {
      const std::int64_t t = first + j;
      panel_product(Result<float>{to + j, kKeys, nullptr, false}, rows, std::min(kPanel, columns - j),
                    Left<Pair, false>{a, dp}, Right<Pair>{transposed + t * dp / 2, std::min(kPanel, tp - t)},
                    dp / 2);
    }
  }
  // to [rows, padded D] += a [rows, 2 count] . pairs [count, padded D]
  template <bool kPacked>
  void add(float* to, std::int64_t rows, const Left<Pair, kPacked>& a, const Pair* pairs,
           std::int64_t count) const {
    for (std::int64_t d = 0; d < dp; d += kPanel) {
      panel_product(Result<float>{to + d, dp, nullptr, true}, rows, std::min(kPanel, dp - d), a,
                    Right<Pair>{pairs + d, dp}, count);
    }
  }
};

bfloat16* take_tile(Carver& carve) { return reinterpret_cast<bfloat16*>(carve.take(in_floats(kTile))); }

// A tile [queries, keys] as the left operand of two products: by its rows, and by its columns in packed
// strips.
struct LeftTile {
  static constexpr std::int64_t kPairs = kQueries / 2;
  static std::int64_t floats() { return in_floats(kTile) + kStripsOfTile * strip_units(kPairs); }

  explicit LeftTile(Carver& carve)
      : rows(take_tile(carve)),
        strips(reinterpret_cast<Pair*>(carve.take(kStripsOfTile * strip_units(kPairs)))) {}
  void clear() const { std::memset(rows, 0, kTile * sizeof *rows); }
  void pack(const Tile& tile) const {
    pack_strips(strips, strip_units(kPairs), rows, kKeys, tile.keys, tile.rows);
  }
  Left<Pair, false> from_query(std::int64_t query) const { return {rows + query * kKeys, kKeys}; }
  // From a key that begins a strip, and a pair of queries.
  Left<Pair, true> from_key(std::int64_t key, std::int64_t pair) const {
    return {reinterpret_cast<const bfloat16*>(strips + key / kStrip * strip_units(kPairs) + pair * kStrip),
            0};
  }

  bfloat16* rows;
  Pair* strips;
};

}  // namespace

template <>
std::int64_t HeadKernels<bfloat16>::forward_scratch(const HeadShape& shape) {
  return 4 * in_floats(shape.matrix()) + kTile + in_floats(kTile) + kQueries * shape.padded_channels;
}
template <>
std::int64_t HeadKernels<bfloat16>::backward_scratch(const HeadShape& shape) {
  return 9 * in_floats(shape.matrix()) + 3 * shape.matrix() + 2 * kTile + 2 * LeftTile::floats() +
         shape.padded_positions;
}

template <>
void HeadKernels<bfloat16>::forward(const HeadForward<bfloat16>& head, const HeadShape& shape,
                                    const DropoutTile& dropout, float* scratch) {
  Carver carve{scratch};
  const HeadMatrix matrix{shape};
  const std::int64_t dp = shape.padded_channels;
  bfloat16* rows_of = matrix.take(carve);
  matrix.copy(rows_of, head.k, head.qkv_stride);
  const Pair* keys_t = matrix.take_transposed(carve, rows_of);
  matrix.copy(rows_of, head.v, head.qkv_stride);
  const Pair* values = matrix.take_pairs(carve, rows_of);
  bfloat16* queries = matrix.take(carve);
  matrix.copy(queries, head.q, head.qkv_stride);
  float* scores = carve.take(kTile);
  bfloat16* probs = take_tile(carve);
  float* sums = carve.take(kQueries * dp);
  const float scale = shape.scale();

  for (std::int64_t q0 = 0; q0 < shape.positions; q0 += kQueries) {
    const std::int64_t rows = std::min(kQueries, shape.positions - q0);
    std::array<float, kQueries> most, total{};
    most.fill(-std::numeric_limits<float>::infinity());
    std::memset(sums, 0, static_cast<std::size_t>(kQueries * dp) * sizeof(float));
    for_key_tiles(q0, rows, [&](const Tile& tile) {
      for_query_groups(tile, [&](std::int64_t first, std::int64_t n, std::int64_t seen, std::int64_t width) {
        matrix.scores(scores + first * kKeys, queries + (q0 + first) * dp, n, keys_t, tile.k0, width);
        for (std::int64_t i = first; i < first + n; ++i) {
          float* row = scores + i * kKeys;
          const std::int64_t visible = tile.visible(i);
          for (std::int64_t c = 0; c < width; c += kLanes) store(row + c, load(row + c) * scale);
          if (visible > 0) {
            DropoutRow::Factors factors;
            if (dropout.active()) factors = dropout.factors(q0 + i, tile.k0);
            const auto at = static_cast<std::size_t>(i);
            const float rescale =
                softmax_row(row, visible, width, most[at], total[at], dropout.active() ? &factors : nullptr);
            if (rescale != 1.0f) {
              for (std::int64_t d = 0; d < dp; d += kLanes)
                store(sums + i * dp + d, load(sums + i * dp + d) * rescale);
            }
          } else {
            std::fill_n(row, width, 0.0f);
          }
          for (std::int64_t c = 0; c < width; c += kLanes) store(probs + i * kKeys + c, load(row + c));
        }
        matrix.add(sums + first * dp, n, Left<Pair, false>{probs + first * kKeys, kKeys},
                   values + tile.k0 / 2 * dp, count_of(seen, 2));
      });
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (head.lse) head.lse[q0 + i] = most[at] + std::log(total[at]);
      unpack_rows(head.out + (q0 + i) * head.out_stride, 0, sums + i * dp, {1, 1, shape.channels},
                  1 / total[at]);
    }
  }
}

template <>
void HeadKernels<bfloat16>::backward(const HeadBackward<bfloat16>& head, const HeadShape& shape,
                                     const DropoutTile& dropout, float* scratch) {
  Carver carve{scratch};
  const HeadMatrix matrix{shape};
  const std::int64_t dp = shape.padded_channels;
  bfloat16* rows_of = matrix.take(carve);
  matrix.copy(rows_of, head.v, head.qkv_stride);
  const Pair* values_t = matrix.take_transposed(carve, rows_of);
  matrix.copy(rows_of, head.k, head.qkv_stride);
  const Pair* keys_t = matrix.take_transposed(carve, rows_of);
  const Pair* keys = matrix.take_pairs(carve, rows_of);
  bfloat16* queries = matrix.take(carve);
  matrix.copy(queries, head.q, head.qkv_stride);
  const Pair* query_pairs = matrix.take_pairs(carve, queries);
  bfloat16* d_out = matrix.take(carve);
  matrix.copy(d_out, head.dout, head.out_stride);
  const Pair* d_out_pairs = matrix.take_pairs(carve, d_out);
  float* d_queries = carve.take(shape.matrix());
  float* d_keys = carve.take(shape.matrix());
  float* d_values = carve.take(shape.matrix());
  std::memset(d_queries, 0, static_cast<std::size_t>(3 * shape.matrix()) * sizeof(float));
  float* scores = carve.take(kTile);
  float* d_products = carve.take(kTile);
  const LeftTile probs(carve), d_scores(carve);
  float* delta = carve.take(shape.padded_positions);
  fill_delta(delta, head, shape);
  const float scale = shape.scale();

  for (std::int64_t q0 = 0; q0 < shape.positions; q0 += kQueries) {
    const std::int64_t rows = std::min(kQueries, shape.positions - q0);
    for_key_tiles(q0, rows, [&](const Tile& tile) {
      if (tile.visible(0) < tile.keys) {  // what no group of queries fills is zero
        for (const auto& left : {probs, d_scores}) left.clear();
      }
      for_query_groups(tile, [&](std::int64_t first, std::int64_t n, std::int64_t seen, std::int64_t width) {
        const std::int64_t row = (q0 + first) * dp, at = first * kKeys;
        matrix.scores(scores + at, queries + row, n, keys_t, tile.k0, width);
        matrix.scores(d_products + at, d_out + row, n, values_t, tile.k0, width);
        for (std::int64_t i = first; i < first + n; ++i) {
          DropoutRow::Factors factors;
          if (dropout.active()) factors = dropout.factors(q0 + i, tile.k0);
          for (std::int64_t c = 0; c < width; c += kLanes) {
            const std::int64_t element = i * kKeys + c;
            const VecI is_seen = lanes_below(tile.visible(i) - c);
            const Vec p = select(is_seen, exp(load(scores + element) * scale - head.lse[q0 + i]), Vec{});
            const Vec factor = dropout.active() ? factors[static_cast<std::size_t>(c / kLanes)] : splat(1.0f);
            store(probs.rows + element, p * factor);
            store(d_scores.rows + element, p * (factor * load(d_products + element) - delta[q0 + i]));
          }
        }
        matrix.add(d_queries + row, n, d_scores.from_query(first), keys + tile.k0 / 2 * dp, count_of(seen, 2));
      });
      for (const auto& left : {probs, d_scores}) left.pack(tile);
      for_key_groups(tile, [&](std::int64_t first, std::int64_t n, std::int64_t query) {
        // The first query of the first pair may not see the keys; its numbers are zero.
        const std::int64_t row = (tile.k0 + first) * dp, pair = query / 2, from = (q0 / 2 + pair) * dp,
                           pairs = count_of(rows, 2) - pair;
        matrix.add(d_values + row, n, probs.from_key(first, pair), d_out_pairs + from, pairs);
        matrix.add(d_keys + row, n, d_scores.from_key(first, pair), query_pairs + from, pairs);
      });
    });
  }
  unpack_rows(head.dq, head.qkv_stride, d_queries, shape, scale);
  unpack_rows(head.dk, head.qkv_stride, d_keys, shape, scale);
  unpack_rows(head.dv, head.qkv_stride, d_values, shape, 1.0f);
}

}  // namespace shoal::cpu

#endif
