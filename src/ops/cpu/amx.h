// The tile kernel for processors with AMX: squares of 16 rows and 16 columns of float32 sums in tile
// registers, to which one instruction adds the products of 32 terms in bfloat16. A step is so many terms.
// Intel's Software Developer's Manual, volume 2, has the instructions; TDPBF16PS sums the terms of a step
// before it adds them, those with even numbers apart from those with odd ones, and takes subnormal numbers
// for zero.
#pragma once

#include "ops/cpu/tile.h"

#ifdef __AVX512BF16__

namespace shoal::cpu {

constexpr std::int64_t kTileRows = 16, kTileUnits = 16;  // a row of a tile register has 16 units

constexpr std::int64_t whole_steps(std::int64_t units) { return count_of(units, kTileUnits) * kTileUnits; }

// From one strip of 16 rows, or panel of 16 columns, to the next, in units: tile by tile, and one more line,
// so that they do not compete for the same sets of a cache.
constexpr std::int64_t tile_run(std::int64_t units) { return whole_steps(units) * kTileUnits + kTileUnits; }

// The left operand: rows where they lie, or tiles one behind the other (pack_tiles). Distances in bytes: from
// row to row, from step to step, and from 16 rows to the next.
struct TileLeft {
  const std::byte* data;
  std::int64_t row, step, strip;
  bool in_place;  // no zeros follow the last term

  static TileLeft rows(const bfloat16* data, std::int64_t stride) {
    const auto row = stride * static_cast<std::int64_t>(sizeof *data);
    return {reinterpret_cast<const std::byte*>(data), row, 64, kTileRows * row, true};
  }
  static TileLeft tiles(const TilePair* data, std::int64_t units) {
    const auto strip = tile_run(units) * static_cast<std::int64_t>(sizeof *data);
    return {reinterpret_cast<const std::byte*>(data), 64, 64 * kTileRows, strip, false};
  }
  TileLeft from(std::int64_t first) const {  // a multiple of 16 rows
    TileLeft later = *this;
    later.data += first / kTileRows * strip;
    return later;
  }
};

// to: the tiles of strips of 16 rows, which are columns of `from` [depth, stride], zero behind the last term.
inline void pack_tiles(TilePair* to, std::int64_t apart, const bfloat16* from, std::int64_t stride,
                       std::int64_t rows, std::int64_t depth) {
  for (std::int64_t k = 0; k < depth; k += 2 * kTileUnits, to += kTileRows * kTileUnits) {
    const std::int64_t terms = std::min(2 * kTileUnits, depth - k);
    const bfloat16* at = from + k * stride;
    for (std::int64_t i = 0; i < terms; ++i)
      fetch_later_row<false, 2 * kTileUnits>(at + i * stride, stride, rows);
    for (std::int64_t first = 0; first < rows; first += 2 * kTileRows) {
      VecU units[2][kTileUnits] = {};
      for (std::int64_t u = 0; 2 * u < terms; ++u) {
        const bfloat16* row = at + 2 * u * stride + first;
        UnitOf<Pair>::across(&units[0][u], &units[1][u], row, 2 * u + 1 < terms ? row + stride : nullptr,
                             rows - first);
      }
      for (int half = 0; half < 2 && first + half * kTileRows < rows; ++half) {
        transpose(units[half]);
        std::memcpy(to + (first / kTileRows + half) * apart, units[half], sizeof units[half]);
      }
    }
  }
}

template <>
struct UnitOf<TilePair> : UnitOf<Pair> {
  using Left = TileLeft;

  static constexpr std::int64_t kStrip = 2 * kTileRows, kPanel = 2 * kTileUnits;

  static constexpr auto apart = tile_run;
  static constexpr auto pack_left = pack_tiles;
  static std::int64_t calls(std::int64_t units) { return count_of(units, kTileUnits); }
  static std::int64_t strip_units(std::int64_t units) { return 2 * apart(units); }
  static std::int64_t panel_units(std::int64_t units) { return 2 * apart(units); }

  // Panels of 32 columns: two tiles for each step.
  struct Panel {
    Panel(std::int64_t, std::int64_t units) : next(panel_units(units)) {}
    std::int64_t at(std::int64_t unit, std::int64_t column) const {
      constexpr std::int64_t kTile = kTileUnits * kTileUnits;
      return column / kPanel * next + unit / kTileUnits * 2 * kTile + column / kTileUnits % 2 * kTile +
             unit % kTileUnits * kTileUnits + column % kTileUnits;
    }
    std::int64_t next;
  };
  static constexpr auto across = UnitOf<Pair>::across<true>;
  static std::int64_t padded_columns(std::int64_t columns) { return count_of(columns, kPanel) * kPanel; }
  static std::int64_t padded(std::int64_t units) { return whole_steps(units); }
};

// The shapes of the tile registers: rows, and bytes of a row.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, first_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t rows[16] = {};
};

#ifndef SHOAL_EMULATES_TILES
inline void configure_tiles(const TileShapes* shapes) { asm volatile("ldtilecfg %0" ::"m"(*shapes)); }
inline void release_tiles() { asm volatile("tilerelease"); }

template <int kTile>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
void load_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
// Data that are read once need no place in the first-level cache.
template <int kTile>
void stream_tile(const void* from, std::int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void store_tile(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kSum, int kLeft, int kRight>
void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
}
#endif

// The tile registers of this thread, for two strips of rows of the result. A thread that has released them
// has nothing to save when another takes its core.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() {
    if (rows_ > 0) release_tiles();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Up to 32 rows of the result.
  void shape(std::int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    TileShapes shapes;
    const auto set = [&](int tile, std::int64_t height) {
      shapes.rows[tile] = static_cast<std::uint8_t>(height);
      shapes.bytes[tile] = height > 0 ? 64 : 0;
    };
    const std::int64_t upper = std::min(rows, kTileRows), lower = rows - upper;
    for (const int tile : {0, 1, 4}) set(tile, upper);
    for (const int tile : {2, 3, 5}) set(tile, lower);
    for (const int tile : {6, 7}) set(tile, kTileUnits);
    configure_tiles(&shapes);
  }

 private:
  std::int64_t rows_ = 0;
};

// The rows or columns, at most, of the operand that a task keeps in the second-level cache: their sums wait
// on the stack. And the steps of 32 rows or columns of the other one that stay in the first-level cache
// meanwhile.
constexpr std::int64_t kMostOwn = 384, kStepsAtOnce = 16;

// A block: up to 32 rows and columns of the result.
constexpr std::int64_t kSide = 32;
static_assert(kSide == 2 * kTileRows && kSide == 2 * kTileUnits);

template <int kTile, bool kStream>
void load_operand(const void* from, std::int64_t stride) {
  if constexpr (kStream) {
    stream_tile<kTile>(from, stride);
  } else {
    load_tile<kTile>(from, stride);
  }
}

// Adds the products of some steps to the sums of a block, which rest at `sums` [32][stride]; with `first`
// they are zero so far. What streams is not kept in the first-level cache.
template <bool kStreamLeft, bool kLower, bool kRight, typename Fetch>
[[gnu::always_inline]] inline void add_steps(float* sums, std::int64_t stride, bool first, const TileLeft& a,
                                             const TilePair* b, std::int64_t steps, Fetch&& fetch) {
  constexpr std::int64_t kTile = kTileUnits * kTileUnits;
  float* const lower = sums + kTileRows * stride;
  stride *= static_cast<std::int64_t>(sizeof(float));
  if (first) {
    zero_tile<0>();
    if constexpr (kRight) zero_tile<1>();
    if constexpr (kLower) zero_tile<2>();
    if constexpr (kLower && kRight) zero_tile<3>();
  } else {
    load_tile<0>(sums, stride);
    if constexpr (kRight) load_tile<1>(sums + kTileUnits, stride);
    if constexpr (kLower) load_tile<2>(lower, stride);
    if constexpr (kLower && kRight) load_tile<3>(lower + kTileUnits, stride);
  }
  const std::byte* left = a.data;
  for (std::int64_t step = 0; step < steps; ++step, left += a.step, b += 2 * kTile) {
    load_operand<4, kStreamLeft>(left, a.row);
    load_operand<6, !kStreamLeft>(b, 64);
    if constexpr (kRight) load_operand<7, !kStreamLeft>(b + kTile, 64);
    if constexpr (kLower) load_operand<5, kStreamLeft>(left + a.strip, a.row);
    fetch();
    multiply_tiles<0, 4, 6>();
    if constexpr (kRight) multiply_tiles<1, 4, 7>();
    if constexpr (kLower) multiply_tiles<2, 5, 6>();
    if constexpr (kLower && kRight) multiply_tiles<3, 5, 7>();
  }
  store_tile<0>(sums, stride);
  if constexpr (kRight) store_tile<1>(sums + kTileUnits, stride);
  if constexpr (kLower) store_tile<2>(lower, stride);
  if constexpr (kLower && kRight) store_tile<3>(lower + kTileUnits, stride);
}

template <typename T>
void store_block(const Result<T>& c, std::int64_t rows, std::int64_t columns, const float* sums) {
  if (columns < kSide) return store_columns(c, columns, sums, rows, kSide);
  // Copied, so that the compiler keeps them in registers across the stores.
  const float* const bias = c.bias;
  const bool add = c.add, streams = c.stream;
  for (std::int64_t i = 0; i < rows; ++i) {
    T* out = c.data + i * c.stride;
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < kSide; j += kLanes) {
      Vec value = load(sums + i * kSide + j);
      if (bias) value += load(bias + j);
      if (add) value += load(out + j);
      if (streams) {
        stream(out + j, value);
      } else {
        store(out + j, value);
      }
    }
  }
}

// c [rows, columns] (+)= a [rows, depth] . b [depth, columns] + bias, where b is in panels. The operand that
// streams, up to kMostOwn rows or columns, passes by once for each 32 of the other one. Before the strip i of
// these fetch.begin(i) is called, and fetch() for each step of each block.
template <bool kStreamLeft, typename T, typename Fetch>
void tile_product(const Result<T>& c, std::int64_t rows, std::int64_t columns, const TileLeft& a,
                  const TilePair* b, std::int64_t depth, Fetch&& fetch) {
  const std::int64_t steps = count_of(depth, kSide), parts = count_of(steps, kStepsAtOnce),
                     panel = UnitOf<TilePair>::panel_units(count_of(depth, 2)),
                     tail = a.in_place ? depth % kSide : 0;
  alignas(64) float sums[kMostOwn * kSide];
  alignas(64) bfloat16 copy[kSide * kSide];  // of the last terms of rows, with zeros
  const TileLeft last{reinterpret_cast<const std::byte*>(copy), 64, 0, 64 * kTileRows, false};
  Tiles tiles;
  const auto block = [&](std::int64_t row, std::int64_t column, std::int64_t part, float* at) {
    const std::int64_t height = std::min(kSide, rows - row), width = std::min(kSide, columns - column);
    const std::int64_t from = steps * part / parts, to = steps * (part + 1) / parts;
    const std::int64_t whole = to == steps && tail > 0 ? to - 1 : to;
    TileLeft left = a.from(row);
    left.data += from * left.step;
    const TilePair* right = b + column / kSide * panel + from * kSide * kTileUnits;
    tiles.shape(height);
    const auto add = [&]<bool kLower, bool kRight>() {
      add_steps<kStreamLeft, kLower, kRight>(at, kSide, part == 0, left, right, whole - from, fetch);
      if (whole == to) return;
      add_steps<kStreamLeft, kLower, kRight>(at, kSide, false, last,
                                             right + (whole - from) * kSide * kTileUnits, 1, fetch);
    };
    if (height > kTileRows) {
      width > kTileUnits ? add.template operator()<true, true>() : add.template operator()<true, false>();
    } else {
      width > kTileUnits ? add.template operator()<false, true>() : add.template operator()<false, false>();
    }
    if (to < steps) return;
    Result<T> result = c;
    result.data += row * c.stride + column;
    if (c.bias) result.bias += column;
    store_block(result, height, width, at);
  };
  const std::int64_t own = kStreamLeft ? rows : columns, others = kStreamLeft ? columns : rows;
  for (std::int64_t other = 0; other < others; other += kSide) {
    fetch.begin(other / kSide);
    if (tail > 0) {
      const TileLeft left = a.from(other);
      std::memset(copy, 0, sizeof copy);
      for (std::int64_t i = 0; i < std::min(kSide, rows - other); ++i) {
        std::memcpy(copy + i * kSide, left.data + i * left.row + (steps - 1) * left.step,
                    static_cast<std::size_t>(tail) * sizeof *copy);
      }
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      for (std::int64_t i = 0; i < own; i += kSide)
        block(kStreamLeft ? i : other, kStreamLeft ? other : i, part, sums + (parts > 1 ? i * kSide : 0));
    }
  }
  if (c.stream) end_streams();
}

}  // namespace shoal::cpu

#endif
