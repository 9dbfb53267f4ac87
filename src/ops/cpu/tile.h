// The tile kernel of our own products, and what packs its operands: c [rows, columns] (+)= a [rows, K] .
// b [K, columns] + bias, with sums in float32. A unit is what one lane multiplies and adds at a time: a
// float, or a pair of bfloat16 along K where the processor has vdpbf16ps. Without it a number of bfloat16 is
// widened to float while it is packed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/simd.h"

namespace shoal::cpu {

constexpr std::int64_t kStrip = 6;                   // rows of a tile
constexpr std::int64_t kPanel = kTileVecs * kLanes;  // columns of a tile

constexpr std::int64_t count_of(std::int64_t n, std::int64_t piece) { return (n + piece - 1) / piece; }
inline std::int64_t round_up(std::int64_t n) { return count_of(n, kLanes) * kLanes; }

// Loads the first lanes. load_n calls memcpy, and the compiler keeps no vector in a register across a call.
#ifdef __AVX512F__
using Live = __mmask16;
inline Live lanes(std::int64_t live) {
  return static_cast<Live>((1u << std::min<std::int64_t>(live, kLanes)) - 1);
}
inline VecU widened(const bfloat16* from, Live live) {
  return (VecU)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_maskz_loadu_epi16(live, from));
}
inline Vec load_live(const bfloat16* from, Live live) { return (Vec)(widened(from, live) << 16); }
inline Vec load_live(const float* from, Live live) { return (Vec)_mm512_maskz_loadu_ps(live, from); }
#else
using Live = std::int64_t;
inline Live lanes(std::int64_t live) { return live; }
template <typename T>
inline Vec load_live(const T* from, Live live) {
  if (live >= kLanes) return load(from);
  T all[kLanes] = {};
#pragma GCC unroll 8
  for (int lane = 0; lane < kLanes; ++lane) {
    if (lane < live) all[lane] = from[lane];
  }
  return load(all);
}
#endif

// Transposes a square of lanes.
inline void transpose(VecU (&rows)[kLanes]) {
  const auto exchange = [&]<int kDistance>() {
    if constexpr (kDistance < kLanes) {
      VecU first, second;  // lanes of the two rows, the second one's numbered from kLanes
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
        first[lane] = lane & kDistance ? lane - kDistance + kLanes : lane;
        second[lane] = lane & kDistance ? lane + kLanes : lane + kDistance;
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i & kDistance) continue;
        const VecU a = rows[i], b = rows[i + kDistance];
        rows[i] = __builtin_shuffle(a, b, first);
        rows[i + kDistance] = __builtin_shuffle(a, b, second);
      }
    }
  };
  exchange.template operator()<8>();
  exchange.template operator()<4>();
  exchange.template operator()<2>();
  exchange.template operator()<1>();
}

// A kind of unit: the type of rows that a tile reads where they lie, the terms of a unit, the columns that
// across() takes at a time, and how units are made. `next` is the row behind `row`, null behind the last one.
template <typename Unit>
struct UnitOf;

// Panels of a right operand as the tile kernel below reads them: whole vectors, unit by unit.
template <typename Unit>
struct VectorPanels {
  static constexpr std::int64_t kStrip = cpu::kStrip, kPanel = cpu::kPanel;

  struct Panel {
    Panel(std::int64_t columns, std::int64_t) : width(round_up(columns)) {}
    std::int64_t at(std::int64_t unit, std::int64_t column) const { return unit * width + column; }
    std::int64_t width;
  };
  // The units and columns of a packed panel: zeros are behind the last ones of the operand.
  static std::int64_t padded(std::int64_t units) { return units; }
  static std::int64_t padded_columns(std::int64_t columns) { return round_up(columns); }
  static std::int64_t panel_units(std::int64_t units) { return units * kPanel; }
  static std::int64_t calls(std::int64_t) { return kStrip; }  // of fetch(), for a tile
  // Units from one packed strip to the next: whole cache lines, and one more, so that strips do not compete
  // for the same sets of a cache.
  static std::int64_t strip_units(std::int64_t units) { return count_of(units * kStrip, 16) * 16 + 16; }
};

template <>
struct UnitOf<float> : VectorPanels<float> {
  using Source = float;
  static constexpr std::int64_t kTerms = 1, kColumns = kLanes;
  template <typename T>
  static VecU along(const T* row, std::int64_t terms) {
    return (VecU)load_live(row, lanes(terms));
  }
  template <typename T>
  static void across(float* to, float*, const T* row, const T*, std::int64_t columns) {
    store(to, load_live(row, lanes(columns)));
  }
};

using Pair = std::uint32_t;
enum class TilePair : std::uint32_t {};  // that AMX's tile registers multiply (amx.h)
template <typename Unit>
constexpr bool kTiles = std::is_same_v<Unit, TilePair>;

#ifdef __AVX512BF16__
template <>
struct UnitOf<Pair> : VectorPanels<Pair> {
  using Source = bfloat16;
  static constexpr std::int64_t kTerms = 2, kColumns = 2 * kLanes;
  static __mmask32 first_bits(std::int64_t n) { return n < 32 ? (1u << n) - 1 : ~0u; }
  static VecU along(const bfloat16* row, std::int64_t terms) {
    return (VecU)_mm512_maskz_loadu_epi16(first_bits(terms), row);
  }
  // `second` gets the columns from kLanes on, if there are any or kBoth is set.
  template <bool kBoth = false>
  static void across(void* to, void* second, const bfloat16* row, const bfloat16* next,
                     std::int64_t columns) {
    const auto live = first_bits(columns);
    const auto even = _mm512_maskz_loadu_epi16(live, row);
    const auto odd = next ? _mm512_maskz_loadu_epi16(live, next) : __m512i{};
    // Lanes of 16 bits, those of `odd` numbered from 32: 0, 32, 1, 33 ...
    const auto first = (__m512i)(((VecU)lane_numbers() + 32u) << 16 | (VecU)lane_numbers());
    const VecU low = (VecU)_mm512_permutex2var_epi16(even, first, odd);
    std::memcpy(to, &low, sizeof low);
    if (!kBoth && columns <= kLanes) return;
    const VecU high = (VecU)_mm512_permutex2var_epi16(even, (__m512i)((VecU)first + 0x00100010u), odd);
    std::memcpy(second, &high, sizeof high);
  }
};
#endif

// The panel `to` [K in units, rounded up][columns in whole vectors] = from [columns, stride], zero in the
// padding
template <typename Unit, typename T>
void pack_transposed(Unit* to, const T* from, std::int64_t stride, std::int64_t columns, std::int64_t depth) {
  constexpr std::int64_t kTerms = UnitOf<Unit>::kTerms;
  const std::int64_t units = count_of(depth, kTerms), padded = UnitOf<Unit>::padded(units);
  const typename UnitOf<Unit>::Panel panel(columns, units);
  for (std::int64_t column = 0; column < UnitOf<Unit>::padded_columns(columns); column += kLanes) {
    for (std::int64_t unit = 0; unit < units; unit += kLanes) {
      VecU rows[kLanes];
      const T* later = from + (unit + kLanes < units ? column * stride + kTerms * (unit + kLanes)
                                                     : (column + kLanes) * stride);
      for (int i = 0; i < kLanes; ++i) __builtin_prefetch(later + i * stride);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        rows[i] = column + i < columns ? UnitOf<Unit>::along(from + (column + i) * stride + kTerms * unit,
                                                             depth - kTerms * unit)
                                       : VecU{};
      }
      transpose(rows);
      const auto count = std::min<std::int64_t>(kLanes, padded - unit);
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(to + panel.at(unit + i, column), &rows[i], sizeof rows[i]);
    }
  }
}

// The panel `to` [K in units, rounded up][columns in whole vectors] = from [depth, stride], zero in the
// padding
template <typename Unit, typename T>
void pack_columns(Unit* to, const T* from, std::int64_t stride, std::int64_t columns, std::int64_t depth) {
  constexpr std::int64_t kTerms = UnitOf<Unit>::kTerms;
  const std::int64_t units = count_of(depth, kTerms), padded = UnitOf<Unit>::padded(units);
  const typename UnitOf<Unit>::Panel panel(columns, units);
  for (std::int64_t k = 0; k < depth; k += kTerms) {
    const T* row = from + k * stride;
    const T* next = k + 1 < depth ? row + stride : nullptr;
    for (std::int64_t i = 0; i < kTerms; ++i) fetch_later_row(row + i * stride, stride, columns);
    std::int64_t column = 0;
    if constexpr (std::is_same_v<T, Unit>) {
      for (; column + kLanes <= columns; column += kLanes)
        store(to + panel.at(k, column), load(row + column));
    }
    for (; column < columns; column += UnitOf<Unit>::kColumns) {
      Unit* at = to + panel.at(k / kTerms, column);
      UnitOf<Unit>::across(at, to + panel.at(k / kTerms, column + kLanes), row + column,
                           next ? next + column : nullptr, columns - column);
    }
  }
  for (std::int64_t unit = units; unit < padded; ++unit) {
    for (std::int64_t column = 0; column < UnitOf<Unit>::padded_columns(columns); column += kLanes)
      std::memset(to + panel.at(unit, column), 0, kLanes * sizeof *to);
  }
}

// to [strips][K in units, rounded up][kStrip] = from [depth, stride], whose columns are rows of the result;
// `size` is from strip to strip. The rest of a last strip may be anything. A strip gets several units in one
// run: if all strips grew by a unit each, they would be as many streams of writes.
template <typename Unit, typename T>
void pack_strips(Unit* to, std::int64_t size, const T* from, std::int64_t stride, std::int64_t rows,
                 std::int64_t depth) {
  constexpr std::int64_t kColumns = 16 * kStrip, kUnits = 16, kDepth = kUnits * UnitOf<Unit>::kTerms,
                         kCopied = 8;  // one vector, of which the next unit overwrites the end
  alignas(64) Unit packed[kUnits * kColumns];
  for (std::int64_t k = 0; k < depth; k += kDepth, to += kUnits * kStrip, from += kDepth * stride) {
    const std::int64_t terms = std::min(kDepth, depth - k), units = count_of(terms, UnitOf<Unit>::kTerms);
    for (std::int64_t first = 0; first < rows; first += kColumns) {
      const std::int64_t columns = std::min(kColumns, rows - first), width = round_up(columns);
      pack_columns(packed, from + first, stride, columns, terms);
      for (std::int64_t i = 0; i < columns; i += kStrip) {
        Unit* strip = to + (first + i) / kStrip * size;
        const auto copy = [&](std::int64_t u, std::int64_t count) {
          std::memcpy(strip + u * kStrip, packed + u * width + i,
                      static_cast<std::size_t>(count) * sizeof(Unit));
        };
        for (std::int64_t u = 0; u + 1 < units; ++u) copy(u, kCopied);
        copy(units - 1, kStrip);
      }
    }
  }
}

// The left operand of a tile: unit u of row r is at data + r * row() + u * step, in elements of the source.
// Rows of the result are rows of `data`, or its columns, which lie side by side.
template <typename Unit, bool kByColumns>
struct Left {
  using Source = typename UnitOf<Unit>::Source;
  static constexpr std::int64_t kTerms = UnitOf<Unit>::kTerms;

  const Source* data;
  std::int64_t stride;  // from row to row, or from unit to unit of a column
  std::int64_t strip;   // from the first kStrip rows of the result to the next ones

  std::int64_t row() const { return kByColumns ? kTerms : stride; }
  std::int64_t step() const { return kByColumns ? stride : kTerms; }
  Left from(std::int64_t first) const { return {data + first * row(), stride, strip}; }
};
template <typename Unit>
Left<Unit, false> left_rows(const typename UnitOf<Unit>::Source* data, std::int64_t stride) {
  return {data, stride, kStrip * stride};
}
// Columns of a matrix [units][stride], or of packed strips with so many units.
template <typename Unit>
Left<Unit, true> left_columns(const Unit* data, std::int64_t stride) {
  constexpr std::int64_t kTerms = UnitOf<Unit>::kTerms;
  return {reinterpret_cast<const typename UnitOf<Unit>::Source*>(data), kTerms * stride, kTerms * kStrip};
}
template <typename Unit>
Left<Unit, true> left_strips(const Unit* data, std::int64_t units) {
  constexpr std::int64_t kTerms = UnitOf<Unit>::kTerms;
  return {reinterpret_cast<const typename UnitOf<Unit>::Source*>(data), kTerms * kStrip,
          kTerms * UnitOf<Unit>::strip_units(units)};
}

// The right operand: [K in units][stride], of which a tile reads whole vectors.
template <typename Unit>
struct Right {
  const Unit* data;
  std::int64_t stride;
};

template <typename T>
struct Result {
  T* data;
  std::int64_t stride;
  const float* bias;  // of the tile's columns, or null
  bool add;
  bool stream = false;  // past the caches
};

inline Vec multiply_add(Vec sum, float a, Vec b) { return fma(b, a, sum); }
#ifdef __AVX512BF16__
inline Vec multiply_add(Vec sum, Pair a, Vec b) {
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(static_cast<std::int32_t>(a)),
                               (__m512bh)b);
}
#endif

// Writes the first columns of a tile's sums. Few tiles are not whole, so one function serves all kinds.
template <typename T>
[[gnu::noinline]] void store_columns(Result<T> c, std::int64_t columns, const float* sums,
                                     std::int64_t height, std::int64_t width) {
  for (std::int64_t i = 0; i < height; ++i) {
    T* row = c.data + i * c.stride;
    for_lanes(columns, [&](std::int64_t j, std::int64_t live) {
      Vec value = load(sums + i * width + j) + (c.bias ? load_n(c.bias + j, live) : Vec{});
      if (c.add) value += load_n(row + j, live);
      store_n(row + j, value, live);
    });
  }
}

// A tile is computed in as many parts as it has rows. Before each, one row of the result is fetched, and
// fetch() called: all fetches at once would fill the processor's buffers for misses, and the reads of the
// panel would wait for them.
template <int kHeight, int kVecs, typename Unit, bool kByColumns, typename T, typename Fetch>
[[gnu::always_inline]] inline void tile(const Result<T>& c, std::int64_t columns,
                                        const Left<Unit, kByColumns>& a, const Right<Unit>& b,
                                        std::int64_t units, Fetch&& fetch) {
  Vec sums[kHeight][kVecs] = {};
  const auto* left = a.data;
  const Unit* right = b.data;
  const std::int64_t row = a.row(), step = a.step();
  std::int64_t u = 0;
#pragma GCC unroll 1
  for (int part = 0; part < kHeight; ++part) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) __builtin_prefetch(c.data + part * c.stride + j * kLanes, 1);
    fetch();
    for (const std::int64_t end = units * (part + 1) / kHeight; u < end;
         ++u, left += step, right += b.stride) {
      Vec panel[kVecs];
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) std::memcpy(&panel[j], right + j * kLanes, sizeof panel[j]);
#pragma GCC unroll 8
      for (int i = 0; i < kHeight; ++i) {
        Unit unit;
        std::memcpy(&unit, left + i * row, sizeof unit);
#pragma GCC unroll 4
        for (int j = 0; j < kVecs; ++j) sums[i][j] = multiply_add(sums[i][j], unit, panel[j]);
      }
    }
  }
  if (columns < kVecs * kLanes) {
    float part[kHeight][kVecs * kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) store(&part[i][j * kLanes], sums[i][j]);
    }
    return store_columns(c, columns, &part[0][0], kHeight, kVecs * kLanes);
  }
  const auto for_vectors = [&](auto&& f) {
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) {
#pragma GCC unroll 8
      for (int i = 0; i < kHeight; ++i) f(sums[i][j], c.data + i * c.stride + j * kLanes, j);
    }
  };
  for_vectors([&](Vec& sum, T*, int j) { sum += c.bias ? load(c.bias + j * kLanes) : Vec{}; });
  if (c.add) for_vectors([](Vec& sum, const T* at, int) { sum += load(at); });
  for_vectors([](Vec sum, T* at, int) { store(at, sum); });
}

template <int kVecs, typename Unit, bool kByColumns, typename T, typename Fetch>
void tiles(Result<T> c, std::int64_t rows, std::int64_t columns, Left<Unit, kByColumns> a,
           const Right<Unit>& b, std::int64_t units, Fetch&& fetch) {
  for (; rows >= kStrip; rows -= kStrip) {
    tile<kStrip, kVecs>(c, columns, a, b, units, fetch);
    c.data += kStrip * c.stride;
    a.data += a.strip;
  }
  const auto rest = [&]<int kHeight>() {
    if ((rows & kHeight) == 0) return;
    tile<kHeight, kVecs>(c, columns, a, b, units, [] {});
    c.data += kHeight * c.stride;
    a = a.from(kHeight);
  };
  rest.template operator()<4>();
  rest.template operator()<2>();
  rest.template operator()<1>();
}

// Up to kPanel columns. Calls fetch() kStrip times in the course of each whole tile.
template <typename Unit, bool kByColumns, typename T, typename Fetch>
void panel_product(const Result<T>& c, std::int64_t rows, std::int64_t columns,
                   const Left<Unit, kByColumns>& a, const Right<Unit>& b, std::int64_t units, Fetch&& fetch) {
  const auto with_vecs = [&]<int kVecs>() {
    if constexpr (kVecs <= kTileVecs) {
      if (count_of(columns, kLanes) == kVecs) tiles<kVecs>(c, rows, columns, a, b, units, fetch);
    }
  };
  with_vecs.template operator()<1>();
  with_vecs.template operator()<2>();
  with_vecs.template operator()<3>();
  with_vecs.template operator()<4>();
}

template <typename Unit, bool kByColumns, typename T>
void panel_product(const Result<T>& c, std::int64_t rows, std::int64_t columns,
                   const Left<Unit, kByColumns>& a, const Right<Unit>& b, std::int64_t units) {
  panel_product(c, rows, columns, a, b, units, [] {});
}

}  // namespace shoal::cpu
