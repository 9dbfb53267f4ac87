// Causal attention in tiles with a running maximum, after FlashAttention-2 (Dao 2023), one head of one
// sequence per task. A head's q, k, v are copied into float32 scratch where rows are padded to vectors and
// keys also stand transposed; then every product is the one tile kernel.
#include <cstring>

#include "ops/cpu/attention_bfloat16.h"
#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/threads.h"
#include "ops/cpu/tile_product.h"

namespace shoal::cpu {
namespace {

// to [T, padded D] = from [T, stride] * scale, zero in the padding
template <typename T>
void pack_rows(float* to, const T* from, std::int64_t stride, const HeadShape& shape, float scale) {
  for (std::int64_t t = 0; t < shape.positions; ++t) {
    for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
      store(to + t * shape.padded_channels + d, load_n(from + t * stride + d, live) * scale);
    });
  }
}

// to [D, padded T] = transpose of rows [T, padded D], zero in the padding
void transpose_rows(float* to, const float* rows, const HeadShape& shape) {
  for (std::int64_t t0 = 0; t0 < shape.padded_positions; t0 += kLanes) {
    const std::int64_t live = std::min<std::int64_t>(kLanes, shape.positions - t0);
    for (std::int64_t d = 0; d < shape.channels; ++d) {
      float* out = to + d * shape.padded_positions + t0;
      for (std::int64_t t = 0; t < live; ++t) out[t] = rows[(t0 + t) * shape.padded_channels + d];
      for (std::int64_t t = live; t < kLanes; ++t) out[t] = 0;
    }
  }
}

}  // namespace

template <typename T>
void HeadKernels<T>::forward(const HeadForward<T>& head, const HeadShape& shape, const DropoutTile& dropout,
                             float* scratch) {
  const auto& [out, lse, q, k, v, qkv_stride, out_stride] = head;
  Carver carve{scratch};
  const std::int64_t dp = shape.padded_channels, tp = shape.padded_positions;
  float* queries = carve.take(shape.matrix());
  float* keys_t = carve.take(shape.matrix());
  float* values = carve.take(shape.matrix());
  float* scores = carve.take(kQueries * kKeys);
  float* sums = carve.take(kQueries * dp);
  pack_rows(values, k, qkv_stride, shape, 1.0f);
  transpose_rows(keys_t, values, shape);
  pack_rows(values, v, qkv_stride, shape, 1.0f);
  pack_rows(queries, q, qkv_stride, shape, shape.scale());

  for (std::int64_t q0 = 0; q0 < shape.positions; q0 += kQueries) {
    const std::int64_t rows = std::min(kQueries, shape.positions - q0);
    float most[kQueries], total[kQueries] = {};
    std::fill_n(most, kQueries, -std::numeric_limits<float>::infinity());
    std::memset(sums, 0, static_cast<std::size_t>(kQueries * dp) * sizeof(float));
    for_key_tiles(q0, rows, [&](const Tile& tile) {
      for_query_groups(tile, [&](std::int64_t first, std::int64_t n, std::int64_t seen, std::int64_t width) {
        float* group = scores + first * kKeys;
        tile_product(group, kKeys, {queries + (q0 + first) * dp, dp, 1}, keys_t + tile.k0, tp, n, width,
                     shape.channels, false);
        for (std::int64_t i = first; i < first + n; ++i) {
          const std::int64_t visible = tile.visible(i);
          if (visible == 0) {
            std::fill_n(scores + i * kKeys, width, 0.0f);
            continue;
          }
          DropoutRow::Factors factors;
          if (dropout.active()) factors = dropout.factors(q0 + i, tile.k0);
          const float rescale = softmax_row(scores + i * kKeys, visible, width, most[i], total[i],
                                            dropout.active() ? &factors : nullptr);
          if (rescale != 1.0f) {
            for (std::int64_t d = 0; d < dp; d += kLanes)
              store(sums + i * dp + d, load(sums + i * dp + d) * rescale);
          }
        }
        tile_product(sums + first * dp, dp, {group, kKeys, 1}, values + tile.k0 * dp, dp, n, dp, seen, true);
      });
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      if (lse) lse[q0 + i] = most[i] + std::log(total[i]);
      for_lanes(shape.channels, [&](std::int64_t d, std::int64_t live) {
        store_n(out + (q0 + i) * out_stride + d, load(sums + i * dp + d) / total[i], live);
      });
    }
  }
}

template <typename T>
void HeadKernels<T>::backward(const HeadBackward<T>& head, const HeadShape& shape, const DropoutTile& dropout,
                              float* scratch) {
  const auto& [dq, dk, dv, dout, out, lse, q, k, v, qkv_stride, out_stride] = head;
  Carver carve{scratch};
  const std::int64_t dp = shape.padded_channels, tp = shape.padded_positions;
  float* queries = carve.take(shape.matrix());
  float* keys = carve.take(shape.matrix());
  float* keys_t = carve.take(shape.matrix());
  float* values_t = carve.take(shape.matrix());
  float* d_out = carve.take(shape.matrix());
  float* d_queries = carve.take(shape.matrix());
  float* d_keys = carve.take(shape.matrix());
  float* d_values = carve.take(shape.matrix());
  float* probs = carve.take(kQueries * kKeys);
  float* d_scores = carve.take(kQueries * kKeys);
  float* delta = carve.take(tp);
  pack_rows(d_out, v, qkv_stride, shape, 1.0f);
  transpose_rows(values_t, d_out, shape);
  pack_rows(keys, k, qkv_stride, shape, 1.0f);
  transpose_rows(keys_t, keys, shape);
  pack_rows(queries, q, qkv_stride, shape, shape.scale());
  pack_rows(d_out, dout, out_stride, shape, 1.0f);
  std::memset(d_queries, 0, static_cast<std::size_t>(3 * shape.matrix()) * sizeof(float));
  fill_delta(delta, head, shape);

  for (std::int64_t q0 = 0; q0 < shape.positions; q0 += kQueries) {
    const std::int64_t rows = std::min(kQueries, shape.positions - q0);
    for_key_tiles(q0, rows, [&](const Tile& tile) {
      for_query_groups(tile, [&](std::int64_t first, std::int64_t n, std::int64_t seen, std::int64_t width) {
        const std::int64_t row = (q0 + first) * dp, at = first * kKeys;
        tile_product(probs + at, kKeys, {queries + row, dp, 1}, keys_t + tile.k0, tp, n, width,
                     shape.channels, false);
        tile_product(d_scores + at, kKeys, {d_out + row, dp, 1}, values_t + tile.k0, tp, n, width,
                     shape.channels, false);
        for (std::int64_t i = first; i < first + n; ++i) {
          DropoutRow::Factors factors;
          if (dropout.active()) factors = dropout.factors(q0 + i, tile.k0);
          for (std::int64_t c = 0; c < width; c += kLanes) {
            float* p_at = probs + i * kKeys + c;
            float* d_at = d_scores + i * kKeys + c;
            const VecI is_seen = lanes_below(tile.visible(i) - c);
            const Vec p = select(is_seen, exp(load(p_at) - lse[q0 + i]), Vec{});
            const Vec factor = dropout.active() ? factors[static_cast<std::size_t>(c / kLanes)] : splat(1.0f);
            store(p_at, p * factor);
            store(d_at, p * (factor * load(d_at) - delta[q0 + i]));
          }
        }
        tile_product(d_queries + row, dp, {d_scores + at, kKeys, 1}, keys + tile.k0 * dp, dp, n, dp, seen,
                     true);
      });
      for_key_groups(tile, [&](std::int64_t first, std::int64_t n, std::int64_t query) {
        const std::int64_t row = (tile.k0 + first) * dp, at = query * kKeys + first, seeing = rows - query;
        tile_product(d_values + row, dp, {probs + at, 1, kKeys}, d_out + (q0 + query) * dp, dp, n, dp, seeing,
                     true);
        tile_product(d_keys + row, dp, {d_scores + at, 1, kKeys}, queries + (q0 + query) * dp, dp, n, dp,
                     seeing, true);
      });
    });
  }
  unpack_rows(dq, qkv_stride, d_queries, shape, shape.scale());
  unpack_rows(dk, qkv_stride, d_keys, shape, 1.0f);
  unpack_rows(dv, qkv_stride, d_values, shape, 1.0f);
}

template <typename T>
std::int64_t HeadKernels<T>::forward_scratch(const HeadShape& shape) {
  return 3 * shape.matrix() + kQueries * kKeys + kQueries * shape.padded_channels;
}
template <typename T>
std::int64_t HeadKernels<T>::backward_scratch(const HeadShape& shape) {
  return 8 * shape.matrix() + 2 * kQueries * kKeys + shape.padded_positions;
}

std::int64_t attention_scratch(int threads, std::int64_t positions, std::int64_t channels, DType type) {
  const HeadShape shape{positions, 1, channels};
  return threads * (type == DType::bf16 ? HeadKernels<bfloat16>::backward_scratch(shape)
                                        : HeadKernels<float>::backward_scratch(shape));
}

void CpuBackend::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                   std::int64_t first_head, const Dropout& dropout) {
  const HeadShape shape{qkv.dim(1), qkv.dim(3), qkv.dim(4)};
  const std::int64_t width = shape.heads * shape.channels;
  with_type(qkv.dtype, [&]<typename T>() {
    const std::int64_t per_thread = HeadKernels<T>::forward_scratch(shape);
    float* area = scratch(team_.size() * per_thread);
    team_.run(qkv.dim(0) * shape.heads, [&](std::int64_t task, int member) {
      const std::int64_t b = task / shape.heads, h = task % shape.heads;
      const T* q = qkv.as<T>() + b * shape.positions * 3 * width + h * shape.channels;
      HeadKernels<T>::forward({.out = out.as<T>() + b * shape.positions * width + h * shape.channels,
                               .lse = lse ? lse.as<float>() + task * shape.positions : nullptr,
                               .q = q,
                               .k = q + width,
                               .v = q + 2 * width,
                               .qkv_stride = 3 * width,
                               .out_stride = width},
                              shape, DropoutTile(dropout, first_head + h, b), area + member * per_thread);
    });
  });
}

void CpuBackend::attention_backward(const AttentionBackward& args) {
  const auto& [dqkv, dout, out, lse, qkv, first_head, dropout] = args;
  const HeadShape shape{qkv.dim(1), qkv.dim(3), qkv.dim(4)};
  const std::int64_t width = shape.heads * shape.channels;
  with_type(qkv.dtype, [&]<typename T>() {
    const std::int64_t per_thread = HeadKernels<T>::backward_scratch(shape);
    float* area = scratch(team_.size() * per_thread);
    team_.run(qkv.dim(0) * shape.heads, [&](std::int64_t task, int member) {
      const std::int64_t b = task / shape.heads, h = task % shape.heads;
      const std::int64_t at = b * shape.positions * width + h * shape.channels;
      const std::int64_t at3 = b * shape.positions * 3 * width + h * shape.channels;
      const T* q = qkv.as<T>() + at3;
      T* dq = dqkv.as<T>() + at3;
      HeadKernels<T>::backward({.dq = dq,
                                .dk = dq + width,
                                .dv = dq + 2 * width,
                                .dout = dout.as<T>() + at,
                                .out = out.as<T>() + at,
                                .lse = lse.as<float>() + task * shape.positions,
                                .q = q,
                                .k = q + width,
                                .v = q + 2 * width,
                                .qkv_stride = 3 * width,
                                .out_stride = width},
                               shape, DropoutTile(dropout, first_head + h, b), area + member * per_thread);
    });
  });
}

void CpuBackend::attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values,
                                  const Tensor& qkv, std::int64_t past) {
  const std::int64_t positions = qkv.dim(0), heads = qkv.dim(2), channels = qkv.dim(3),
                     width = heads * channels;
  if (past == 0 && positions > kFewRows) {  // a prompt: in tiles
    attention_forward(out.reshaped({1, positions, heads, channels}), {},
                      qkv.reshaped({1, positions, 3, heads, channels}), 0, {});
    with_type(qkv.dtype, [&]<typename T>() {
      for (std::int64_t t = 0; t < positions; ++t) {
        const T* k = qkv.as<T>() + (3 * t + 1) * width;
        std::copy_n(k, width, keys.as<T>() + t * width);
        std::copy_n(k + width, width, values.as<T>() + t * width);
      }
    });
    return;
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(channels));
  const std::int64_t per_thread = round_up(past + positions) + round_up(channels);
  float* area = scratch(team_.size() * per_thread);
  with_type(qkv.dtype, [&]<typename T>() {
    team_.run(heads, [&](std::int64_t h, int member) {
      float* scores = area + member * per_thread;
      float* sums = scores + round_up(past + positions);
      for (std::int64_t t = 0; t < positions; ++t) {
        const T* q = qkv.as<T>() + t * 3 * width + h * channels;
        const std::int64_t now = (past + t) * width + h * channels, visible = past + t + 1;
        std::memcpy(keys.as<T>() + now, q + width, static_cast<std::size_t>(channels) * sizeof(T));
        std::memcpy(values.as<T>() + now, q + 2 * width, static_cast<std::size_t>(channels) * sizeof(T));
        for (std::int64_t k = 0; k < visible; ++k) {
          Vec dot{};
          for_lanes(channels, [&](std::int64_t d, std::int64_t live) {
            dot += load_n(q + d, live) * load_n(keys.as<T>() + k * width + h * channels + d, live);
          });
          scores[k] = cpu::sum(dot) * scale;
        }
        float most = -std::numeric_limits<float>::infinity(), total = 0;
        softmax_row(scores, visible, round_up(visible), most, total, nullptr);
        std::fill_n(sums, round_up(channels), 0.0f);
        for (std::int64_t k = 0; k < visible; ++k) {
          for_lanes(channels, [&](std::int64_t d, std::int64_t live) {
            store(sums + d,
                  load(sums + d) + scores[k] * load_n(values.as<T>() + k * width + h * channels + d, live));
          });
        }
        for_lanes(channels, [&](std::int64_t d, std::int64_t live) {
          store_n(out.as<T>() + t * width + h * channels + d, load(sums + d) / total, live);
        });
      }
    });
  });
}

}  // namespace shoal::cpu
