// Attention in generation: tokens attend to the keys and values of those before them, which are cached.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/cpu_backend.h"

namespace shoal::cpu {
namespace {

// Some heads of one row of a text, which attend to cached keys and values. Rows of the caches are read in the
// order of memory, all heads of a row together.
template <typename T>
struct CachedHeads {
  const T *query, *key, *value;  // of the first head; those of the caches at position 0
  T* out;
  std::int64_t width;  // from one position of the caches to the next
  std::int64_t heads, channels, visible;

  static std::int64_t scratch(std::int64_t heads, std::int64_t channels, std::int64_t longest) {
    return heads * (round_up(longest) + 2 * round_up(channels) + 1);
  }
  // `scores_apart`: floats from one head's scores to the next one's.
  void attend(Carver carve, std::int64_t scores_apart, const DropoutTile& no_dropout) const {
    const std::int64_t dp = round_up(channels);
    float *scores = carve.take(heads * scores_apart), *wide = carve.take(heads * dp),
          *sums = carve.take(heads * dp), *totals = carve.take(heads);
    const auto for_heads = [&](auto&& f) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for_lanes(channels,
                  [&](std::int64_t d, std::int64_t live) { f(h, h * channels + d, h * dp + d, live); });
      }
    };
    for_heads([&](std::int64_t, std::int64_t from, std::int64_t to, std::int64_t live) {
      store(wide + to, load_n(query + from, live));
    });
    for (std::int64_t k = 0; k < visible; ++k) {
      const T* row = key + k * width;
      for (std::int64_t h = 0; h < heads; ++h) {
        Vec dot{};
        for_lanes(channels, [&](std::int64_t d, std::int64_t live) {
          dot += load(wide + h * dp + d) * load_n(row + h * channels + d, live);
        });
        scores[h * scores_apart + k] = cpu::sum(dot);
      }
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      float most = -std::numeric_limits<float>::infinity(), *of_head = scores + h * scores_apart;
      totals[h] = 0;
      softmax_rows<1>(of_head,
                      {.scores = of_head,
                       .stride = 0,
                       .count = 1,
                       .query = visible - 1,
                       .k0 = 0,
                       .seen = visible,
                       .width = round_up(visible),
                       .scale = 1.0f / std::sqrt(static_cast<float>(channels))},
                      no_dropout, &most, totals + h);
    }
    const auto add = [&]<int kKeysAtOnce>(std::int64_t k) {
      for_heads([&](std::int64_t h, std::int64_t from, std::int64_t to, std::int64_t live) {
        Vec sum = k == 0 ? Vec{} : load(sums + to);
        for (int i = 0; i < kKeysAtOnce; ++i)
          sum += scores[h * scores_apart + k + i] * load_n(value + (k + i) * width + from, live);
        store(sums + to, sum);
      });
    };
    std::int64_t k = 0;
    for (; k + 4 <= visible; k += 4) add.template operator()<4>(k);
    for (; k < visible; ++k) add.template operator()<1>(k);
    for_heads([&](std::int64_t h, std::int64_t to, std::int64_t from, std::int64_t live) {
      store_n(out + to, load(sums + from) / totals[h], live);
    });
  }
};

}  // namespace

void CpuBackend::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                  const Tensor& qkv, const CacheRows& rows) {
  const std::int64_t count = qkv.dim(0), heads = qkv.dim(2), channels = qkv.dim(3), width = heads * channels;
  const auto* texts = rows.texts.as<std::int32_t>();
  const auto* positions = rows.positions.as<std::int32_t>();
  const auto place = [&](std::int64_t row) {  // of the row's own key and value in the caches
    return (texts[row] * keys.dim(1) + positions[row]) * width;
  };
  if (rows.prompt && count > kFewRows) {  // in tiles
    attention_forward(out.reshaped({1, count, heads, channels}), {},
                      qkv.reshaped({1, count, 3, heads, channels}), 0, {});
    with_type(qkv.dtype, [&]<typename T>() {
      for (std::int64_t row = 0; row < count; ++row) {
        const T* k = qkv.as<T>() + (3 * row + 1) * width;
        std::copy_n(k, width, keys.as<T>() + place(row));
        std::copy_n(k + width, width, values.as<T>() + place(row));
      }
    });
    return;
  }
  std::vector<std::int64_t> runs;  // the first row of each text
  for (std::int64_t row = 0; row < count; ++row) {
    if (row == 0 || texts[row] != texts[row - 1]) runs.push_back(row);
  }
  runs.push_back(count);
  const Dropout none;
  const DropoutTile no_dropout(none, 0, 0);
  // Neighbouring heads of a text are one thread's, as many as leave each thread two tasks: a row attends to
  // those before it.
  const std::int64_t count_of_runs = std::ssize(runs) - 1,
                     most = std::clamp<std::int64_t>(count_of_runs * heads / (2 * team_.size()), 1, heads),
                     groups = count_of(heads, most);
  const std::int64_t longest = *std::max_element(positions, positions + count) + 1;
  with_type(qkv.dtype, [&]<typename T>() {
    const std::int64_t per_thread = floats_apart(CachedHeads<T>::scratch(most, channels, longest));
    float* area = scratch(team_.size() * per_thread);
    team_.run(count_of_runs * groups, [&](std::int64_t task, int member) {
      const std::int64_t first = heads * (task % groups) / groups,
                         some = heads * (task % groups + 1) / groups - first;
      const auto run = static_cast<std::size_t>(task / groups);
      for (std::int64_t row = runs[run]; row < runs[run + 1]; ++row) {
        const T* q = qkv.as<T>() + row * 3 * width + first * channels;
        const std::int64_t now = place(row) + first * channels, begin = now - positions[row] * width;
        std::copy_n(q + width, some * channels, keys.as<T>() + now);
        std::copy_n(q + 2 * width, some * channels, values.as<T>() + now);
        const CachedHeads<T> row_heads{.query = q,
                                       .key = keys.as<T>() + begin,
                                       .value = values.as<T>() + begin,
                                       .out = out.as<T>() + row * width + first * channels,
                                       .width = width,
                                       .heads = some,
                                       .channels = channels,
                                       .visible = positions[row] + 1};
        row_heads.attend({area + member * per_thread}, round_up(longest), no_dropout);
      }
    });
  });
}

}  // namespace shoal::cpu
