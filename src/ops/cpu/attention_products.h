// The products of one head of attention: by vectors (tile.h), or by tile registers (amx.h).
#pragma once

#include <cstring>

#include "ops/cpu/amx.h"
#include "ops/cpu/attention_tiles.h"

namespace shoal::cpu {

// By vectors. Terms are channels, keys or queries.
template <typename Unit>
class HeadProducts {
 public:
  using Source = typename UnitOf<Unit>::Source;
  using Rows = Left<Unit, false>;
  static constexpr std::int64_t kTerms = UnitOf<Unit>::kTerms;
  // Channels and positions are padded to multiples of kWhole. kGroup queries or keys are multiplied at a
  // time; a tile of the forward pass has kForwardKeys; kSoftmaxRows rows share a loop of the softmax.
  static constexpr std::int64_t kWhole = kLanes, kGroup = kStrip, kForwardKeys = 4 * kKeys;
  static constexpr int kSoftmaxRows = kStrip;
  static constexpr std::int64_t kStep = kTerms;  // terms that are multiplied together

  explicit HeadProducts(const HeadShape& shape)
      : shape_(shape), dp_(shape.padded_channels), units_(count_of(shape.channels, kTerms)) {}

  // Left operands, by rows, and by the columns of a tile [queries, keys].
  static Rows rows(const Source* data, std::int64_t stride) { return left_rows<Unit>(data, stride); }
  static Rows from(const Rows& rows, std::int64_t first) { return rows.from(first); }
  static constexpr std::int64_t column_units() { return kTerms > 1 ? kQueries / kTerms * kKeys : 0; }
  static Left<Unit, true> columns(Unit* to, Source* tile, std::int64_t queries, std::int64_t keys) {
    if constexpr (kTerms == 1) return left_columns<Unit>(tile, kKeys);
    pack_columns(to, tile, kKeys, keys, queries);
    return left_columns<Unit>(to, round_up(keys));
  }
  static auto from(const Left<Unit, true>& columns, std::int64_t key, std::int64_t query) {
    return Left<Unit, true>{columns.data + kTerms * key + query / kTerms * columns.stride, columns.stride,
                            columns.strip};
  }

  // Right operands: a matrix [T, D], and its transpose.
  std::int64_t matrix_units() const { return count_of(shape_.positions, kTerms) * dp_; }
  template <typename T>
  void pack_matrix(Unit* to, const T* from, std::int64_t stride) const {
    pack_columns(to, from, stride, shape_.channels, shape_.positions);
  }
  std::int64_t transposed_units() const { return units_ * shape_.padded_positions; }
  template <typename T>
  void pack_transposed(Unit* to, const T* from, std::int64_t stride) const {
    for (std::int64_t t = 0; t < shape_.positions; t += kPanel) {
      cpu::pack_transposed(to + t * units_, from + t * stride, stride, std::min(kPanel, shape_.positions - t),
                           shape_.channels);
    }
  }

  // scores [n, columns] = rows [n, D] . transposed[first, first + columns), `stride` from row to row
  void scores(float* to, std::int64_t stride, const Rows& rows, std::int64_t n, const Unit* transposed,
              std::int64_t first, std::int64_t columns) const {
    for (std::int64_t j = 0; j < columns; j += kPanel) {
      const std::int64_t t = first + j;
      panel_product(Result<float>{to + j, stride, nullptr, false}, n, std::min(kPanel, columns - j), rows,
                    Right<Unit>{transposed + t * units_, std::min(kPanel, shape_.padded_positions - t)},
                    units_);
    }
  }
  // to [n, padded D] (+)= a [n, terms] . matrix[first, first + terms)
  template <typename A>
  void add(float* to, std::int64_t n, const A& a, const Unit* matrix, std::int64_t first, std::int64_t terms,
           bool add = true) const {
    for (std::int64_t d = 0; d < dp_; d += kPanel) {
      panel_product(Result<float>{to + d, dp_, nullptr, add}, n, std::min(kPanel, dp_ - d), a,
                    Right<Unit>{matrix + first / kTerms * dp_ + d, dp_}, count_of(terms, kTerms));
    }
  }

 private:
  const HeadShape& shape_;
  std::int64_t dp_, units_;
};

#ifdef __AVX512BF16__
// By tile registers, which are those of the thread that has made it.
template <>
class HeadProducts<TilePair> {
 public:
  using Source = bfloat16;
  using Rows = TileLeft;
  static constexpr std::int64_t kTerms = 2;
  static constexpr std::int64_t kWhole = kSide, kGroup = kSide, kForwardKeys = 2 * kKeys, kStep = kSide;
  static constexpr int kSoftmaxRows = 8;

  explicit HeadProducts(const HeadShape& shape)
      : shape_(shape),
        dp_(shape.padded_channels),
        run_(Form::panel_units(shape.padded_channels / 2)),
        matrix_run_(Form::panel_units(shape.padded_positions / 2)) {}

  static Rows rows(const Source* data, std::int64_t stride) { return TileLeft::rows(data, stride); }
  static Rows from(const Rows& rows, std::int64_t first) { return rows.from(first); }
  static constexpr std::int64_t column_units() { return kKeys / kTileRows * tile_run(kQueries / 2); }
  static TileLeft columns(TilePair* to, const Source* tile, std::int64_t queries, std::int64_t keys) {
    pack_tiles(to, tile_run(kQueries / 2), tile, kKeys, keys, queries);
    return TileLeft::tiles(to, kQueries / 2);
  }
  static TileLeft from(const TileLeft& columns, std::int64_t key, std::int64_t query) {
    TileLeft later = columns.from(key);
    later.data += query / kStep * later.step;
    return later;
  }

  std::int64_t matrix_units() const { return dp_ / kSide * matrix_run_; }
  void pack_matrix(TilePair* to, const bfloat16* from, std::int64_t stride) const {
    pack_columns(to, from, stride, shape_.channels, shape_.positions);
  }
  std::int64_t transposed_units() const { return shape_.padded_positions / kSide * run_; }
  void pack_transposed(TilePair* to, const bfloat16* from, std::int64_t stride) const {
    cpu::pack_transposed(to, from, stride, shape_.positions, shape_.channels);
  }

  void scores(float* to, std::int64_t stride, const Rows& rows, std::int64_t n, const TilePair* transposed,
              std::int64_t first, std::int64_t columns) {
    for (std::int64_t j = 0; j < columns; j += kSide)
      product(to + j, stride, n, rows, transposed + (first + j) / kSide * run_, dp_ / kSide, false);
  }
  void add(float* to, std::int64_t n, const TileLeft& a, const TilePair* matrix, std::int64_t first,
           std::int64_t terms, bool add = true) {
    for (std::int64_t d = 0; d < dp_; d += kSide) {
      product(to + d, dp_, n, a, matrix + d / kSide * matrix_run_ + first * kTileUnits,
              count_of(terms, kSide), add);
    }
  }

 private:
  using Form = UnitOf<TilePair>;

  // to [n, 32] (+)= a . b
  void product(float* to, std::int64_t stride, std::int64_t n, const TileLeft& a, const TilePair* b,
               std::int64_t steps, bool add) {
    tiles_.shape(n);
    if (n > kTileRows) {
      add_steps<false, true, true>(to, stride, !add, a, b, steps, [] {});
    } else {
      add_steps<false, false, true>(to, stride, !add, a, b, steps, [] {});
    }
  }

  const HeadShape& shape_;
  std::int64_t dp_, run_, matrix_run_;  // units from one panel to the next: of a transpose, of a matrix
  Tiles tiles_;
};
#endif

}  // namespace shoal::cpu
