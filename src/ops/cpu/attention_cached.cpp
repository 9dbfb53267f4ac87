// Attention in generation: tokens attend to the keys and values of those before them, which are cached. The
// keys of a row are cut into parts, which threads share: each part is read in the order of memory, all heads
// of a position together, and has a softmax of its own. Then the parts of a row are joined.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/cpu_backend.h"

namespace shoal::cpu {
namespace {

constexpr std::int64_t kPart = 64;  // keys, at most

// The number of parts of so many keys.
std::int64_t parts_of(std::int64_t keys) { return keys <= kPart / 2 ? 1 : 2 * count_of(keys, 2 * kPart); }

struct CachedShape {
  std::int64_t heads, channels;
  std::int64_t width = heads * channels;  // from one position of the caches to the next
  std::int64_t padded_heads = round_up(heads), padded_channels = round_up(channels);
  std::int64_t answer() const { return heads * padded_channels + 2 * padded_heads; }  // floats
};

// The answer of a row by a part of its keys.
struct PartAnswer {
  PartAnswer(float* at, const CachedShape& shape)
      : sums(at), most(at + shape.heads * shape.padded_channels), totals(most + shape.padded_heads) {}
  float* sums;    // of values times e^(score - most)  [H, padded D]
  float* most;    // of the scores  [padded H]
  float* totals;  // of e^(score - most)  [padded H]
};

// Some heads of a part of the keys and values of a text, and of the queries of a row.
template <typename T>
struct CachedPart {
  const T *query, *key, *value;  // of head 0; keys and values of the first position
  std::int64_t keys, first_head, end_head;

  static std::int64_t scratch(const CachedShape& shape) {  // floats
    return shape.heads * kPart + shape.heads * shape.padded_channels;
  }
  void attend(const CachedShape& shape, const PartAnswer& answer, Carver carve,
              const DropoutTile& no_dropout) const {
    float *scores = carve.take(shape.heads * kPart), *wide = carve.take(shape.heads * shape.padded_channels);
    for (std::int64_t h = first_head; h < end_head; ++h) {
      for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
        store(wide + h * shape.padded_channels + d, load_n(query + h * shape.channels + d, live));
      });
    }
    for_keys([&]<int kKeysAtOnce>(std::int64_t k) {
      const auto later = rows_behind<kKeysAtOnce>(k, shape.width);
      for (std::int64_t h = first_head; h < end_head; ++h) {
        fetch(later, h * shape.channels, shape.channels);
        Vec dots[kKeysAtOnce] = {};
        for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
          const Vec q = load(wide + h * shape.padded_channels + d);
          for (int i = 0; i < kKeysAtOnce; ++i)
            dots[i] = fma(q, load_n(key + (k + i) * shape.width + h * shape.channels + d, live), dots[i]);
        });
        for (int i = 0; i < kKeysAtOnce; ++i) scores[h * kPart + k + i] = cpu::sum(dots[i]);
      }
    });
    for (std::int64_t h = first_head; h < end_head; ++h) {
      float* of_head = scores + h * kPart;
      answer.most[h] = -std::numeric_limits<float>::infinity();
      answer.totals[h] = 0;
      softmax_rows<1>(of_head,
                      {.scores = of_head,
                       .stride = 0,
                       .count = 1,
                       .query = keys - 1,
                       .k0 = 0,
                       .seen = keys,
                       .width = round_up(keys),
                       .scale = 1.0f / std::sqrt(static_cast<float>(shape.channels))},
                      no_dropout, answer.most + h, answer.totals + h);
    }
    for_keys([&]<int kKeysAtOnce>(std::int64_t k) {
      const auto later = rows_behind<kKeysAtOnce>(keys + k, shape.width);
      for (std::int64_t h = first_head; h < end_head; ++h) {
        fetch(later, h * shape.channels, shape.channels);
        for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
          float* sums = answer.sums + h * shape.padded_channels + d;
          Vec sum = k == 0 ? Vec{} : load(sums);
          for (int i = 0; i < kKeysAtOnce; ++i) {
            sum = fma(load_n(value + (k + i) * shape.width + h * shape.channels + d, live),
                      scores[h * kPart + k + i], sum);
          }
          store(sums, sum);
        });
      }
    });
  }

 private:
  // f<N>(k) for N keys from k on.
  template <typename F>
  void for_keys(F&& f) const {
    std::int64_t k = 0;
    for (; k + 4 <= keys; k += 4) f.template operator()<4>(k);
    for (; k < keys; ++k) f.template operator()<1>(k);
  }
  // The rows that are read some time behind `row`. Keys come first, then values, then the next part's keys.
  template <int kCount>
  std::array<const T*, kCount> rows_behind(std::int64_t row, std::int64_t width) const {
    constexpr std::int64_t kAhead = 8;
    std::array<const T*, kCount> rows;
    for (int i = 0; i < kCount; ++i) {
      const std::int64_t ahead = row + kAhead + i;
      rows[static_cast<std::size_t>(i)] = ahead < keys       ? key + ahead * width
                                          : ahead < 2 * keys ? value + (ahead - keys) * width
                                                             : key + (ahead - keys) * width;
    }
    return rows;
  }
  template <std::size_t kCount>
  static void fetch(const std::array<const T*, kCount>& rows, std::int64_t from, std::int64_t count) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::int64_t at = from; at < from + count; at += kLine)
      for (const T* row : rows) __builtin_prefetch(row + at, 0, 2);
  }
};

// out x [H, D] = the answer of a row whose parts, of which there are `count`, lie one after the other.
template <typename T>
void join(T* out, float* parts, std::int64_t count, const CachedShape& shape) {
  const auto part = [&](std::int64_t i) { return PartAnswer(parts + i * shape.answer(), shape); };
  // The maxima become the factors of their parts.
  for_lanes(shape.heads, [&](std::int64_t h, std::int64_t) {
    Vec most = load(part(0).most + h), total{};
    for (std::int64_t i = 1; i < count; ++i) most = max(most, load(part(i).most + h));
    for (std::int64_t i = 0; i < count; ++i) {
      const Vec factor = exp(load(part(i).most + h) - most);
      store(part(i).most + h, factor);
      total = fma(factor, load(part(i).totals + h), total);
    }
    store(part(0).totals + h, total);
  });
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
      Vec sum{};
      for (std::int64_t i = 0; i < count; ++i)
        sum = fma(load(part(i).sums + h * shape.padded_channels + d), part(i).most[h], sum);
      store_n(out + h * shape.channels + d, sum / part(0).totals[h], live);
    });
  }
}

}  // namespace

void CpuBackend::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                  const Tensor& qkv, const CacheRows& rows) {
  const std::int64_t count = qkv.dim(0), heads = qkv.dim(2), channels = qkv.dim(3), width = heads * channels;
  const auto* texts = rows.texts.as<std::int32_t>();
  const auto* positions = rows.positions.as<std::int32_t>();
  const auto place = [&](std::int64_t row) {  // of the row's own key and value in the caches
    return (texts[row] * keys.dim(1) + positions[row]) * width;
  };
  const auto append = [&] {
    with_type(qkv.dtype, [&]<typename T>() {
      for (std::int64_t row = 0; row < count; ++row) {
        const T* k = qkv.as<T>() + (3 * row + 1) * width;
        std::copy_n(k, width, keys.as<T>() + place(row));
        std::copy_n(k + width, width, values.as<T>() + place(row));
      }
    });
  };
  if (rows.prompt && count > kFewRows) {  // in tiles
    attention_forward(out.reshaped({1, count, heads, channels}), {},
                      qkv.reshaped({1, count, 3, heads, channels}), 0, {});
    return append();
  }
  append();
  const CachedShape shape{heads, channels};
  std::vector<std::int64_t> first_parts = {0};  // of the rows, and their number
  for (std::int64_t row = 0; row < count; ++row)
    first_parts.push_back(first_parts.back() + parts_of(positions[row] + 1));
  // Each thread has two tasks or more: parts, or some of their heads.
  const std::int64_t parts = first_parts.back(),
                     groups = std::clamp<std::int64_t>(count_of(2 * team_.size(), parts), 1, heads);
  const Dropout none;
  const DropoutTile no_dropout(none, 0, 0);
  with_type(qkv.dtype, [&]<typename T>() {
    const std::int64_t per_thread = floats_apart(CachedPart<T>::scratch(shape));
    float* answers = scratch(parts * shape.answer() + team_.size() * per_thread);
    float* areas = answers + parts * shape.answer();
    const auto answer = [&](std::int64_t part) { return answers + part * shape.answer(); };
    team_.run(parts * groups, [&](std::int64_t task, int member) {
      const std::int64_t part = task / groups, group = task % groups;
      const auto next = std::ranges::upper_bound(first_parts, part);
      const std::int64_t row = next - first_parts.begin() - 1, first_part = *std::prev(next),
                         of_row = *next - first_part, keys_of_row = positions[row] + 1,
                         first = keys_of_row * (part - first_part) / of_row,
                         end = keys_of_row * (part - first_part + 1) / of_row,
                         begin = place(row) + (first - positions[row]) * width;
      const CachedPart<T> cached{.query = qkv.as<T>() + row * 3 * width,
                                 .key = keys.as<T>() + begin,
                                 .value = values.as<T>() + begin,
                                 .keys = end - first,
                                 .first_head = heads * group / groups,
                                 .end_head = heads * (group + 1) / groups};
      cached.attend(shape, PartAnswer(answer(part), shape), {areas + member * per_thread}, no_dropout);
    });
    team_.run(count, [&](std::int64_t row, int) {
      const auto first = first_parts.begin() + row;
      join(out.as<T>() + row * width, answer(first[0]), first[1] - first[0], shape);
    });
  });
}

}  // namespace shoal::cpu
