// Causal attention in tiles with a running maximum, after FlashAttention-2 (Dao 2023), one head of one
// sequence per task. A head's right operands are packed into scratch memory, and every product is the tile
// kernel's. Where a processor multiplies bfloat16, probabilities and gradients of scores are rounded to it
// before they are multiplied, as on GPUs; scores, sums and softmax are float32.
#include <cstring>
#include <type_traits>

#include "ops/cpu/attention_products.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

// The kernels of a head in tensors of type T, with products by units.
template <typename T, typename Unit>
class HeadKernels {
 public:
  HeadKernels(std::int64_t positions, std::int64_t heads, std::int64_t channels)
      : shape_{positions, heads, channels, Products::kWhole} {}
  const HeadShape& shape() const { return shape_; }

  std::int64_t forward_scratch() const {  // floats
    const Products products(shape_);
    return in_floats<Unit>(products.matrix_units() + products.transposed_units()) + kGroup * kForwardKeys +
           in_floats<Source>(kGroup * kForwardKeys + copied_rows()) + kQueries * dp_;
  }
  std::int64_t backward_scratch() const {
    const Products products(shape_);
    return in_floats<Unit>(3 * products.matrix_units() + 2 * products.transposed_units()) +
           2 * kGroup * kKeys + 2 * in_floats<Source>(copied_rows()) + 2 * LeftTile::floats() +
           kQueries * dp_ + 2 * shape_.matrix() + shape_.padded_positions;
  }

  void forward(const HeadForward<T>& head, const DropoutTile& dropout, Carver carve) const;
  void backward(const HeadBackward<T>& head, const DropoutTile& dropout, Carver carve) const;

 private:
  using Products = HeadProducts<Unit>;
  using Source = typename Products::Source;
  using Rows = typename Products::Rows;
  static constexpr std::int64_t kWhole = Products::kWhole, kGroup = Products::kGroup,
                                kForwardKeys = Products::kForwardKeys;

  template <typename Number>
  static constexpr std::int64_t in_floats(std::int64_t count) {
    return count * static_cast<std::int64_t>(sizeof(Number)) / static_cast<std::int64_t>(sizeof(float));
  }
  template <typename Number>
  static Number* take(Carver& carve, std::int64_t count) {
    return reinterpret_cast<Number*>(carve.take(in_floats<Number>(count)));
  }

  // A tile [queries, keys] as the left operand of two products: by its rows, and by its columns.
  struct LeftTile {
    static std::int64_t floats() {
      return in_floats<Source>(kQueries * kKeys) + in_floats<Unit>(Products::column_units());
    }
    explicit LeftTile(Carver& carve)
        : rows(take<Source>(carve, kQueries * kKeys)), units(take<Unit>(carve, Products::column_units())) {}
    // Numbers that no group of queries fills are zero: the first query of a unit may not see a key of its
    // second.
    void begin(const Tile& tile) const {
      if (Products::kTerms > 1 && tile.seen(0) < tile.keys)
        std::memset(rows, 0, kQueries * kKeys * sizeof *rows);
    }
    Rows from_query(std::int64_t query) const { return Products::rows(rows + query * kKeys, kKeys); }
    auto columns(const Tile& tile) const { return Products::columns(units, rows, tile.rows, tile.keys); }

    Source* rows;
    Unit* units;
  };

  // Rows of a tensor as a left operand: where they lie, or copied if their type is another one or their last
  // terms are not whole.
  std::int64_t copied_rows() const { return in_place() ? 0 : kQueries * dp_; }
  bool in_place() const { return std::is_same_v<T, Source> && shape_.channels % Products::kStep == 0; }
  Rows rows_of(const T* from, std::int64_t stride, std::int64_t count, Source* copy) const {
    if constexpr (std::is_same_v<T, Source>) {
      if (in_place()) return Products::rows(from, stride);
    }
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t d = 0; d < dp_; d += kLanes) {
        const std::int64_t live = std::max<std::int64_t>(0, shape_.channels - d);
        store(copy + t * dp_ + d, load_live(from + t * stride + d, lanes(live)));
      }
    }
    return Products::rows(copy, dp_);
  }

  const Unit* take_matrix(Carver& carve, const Products& products, const T* from, std::int64_t stride) const {
    Unit* to = take<Unit>(carve, products.matrix_units());
    products.pack_matrix(to, from, stride);
    return to;
  }
  const Unit* take_transposed(Carver& carve, const Products& products, const T* from,
                              std::int64_t stride) const {
    Unit* to = take<Unit>(carve, products.transposed_units());
    products.pack_transposed(to, from, stride);
    return to;
  }

  HeadShape shape_;
  std::int64_t dp_ = shape_.padded_channels;
};

template <typename T, typename Unit>
void HeadKernels<T, Unit>::forward(const HeadForward<T>& head, const DropoutTile& dropout,
                                   Carver carve) const {
  Products products(shape_);
  const Unit* keys = take_transposed(carve, products, head.k, head.qkv_stride);
  const Unit* values = take_matrix(carve, products, head.v, head.qkv_stride);
  float* group = carve.take(kGroup * kForwardKeys);  // scores
  auto* probs = take<Source>(carve, kGroup * kForwardKeys);
  auto* copy = take<Source>(carve, copied_rows());
  float* sums = carve.take(kQueries * dp_);

  for (std::int64_t q0 = 0; q0 < shape_.positions; q0 += kQueries) {
    const std::int64_t rows = std::min(kQueries, shape_.positions - q0);
    const Rows queries = rows_of(head.q + q0 * head.qkv_stride, head.qkv_stride, rows, copy);
    std::array<float, kQueries> most, total{};
    most.fill(-std::numeric_limits<float>::infinity());
    for_key_tiles<kWhole>(q0, rows, kForwardKeys, [&](const Tile& tile) {
      for_query_groups<kGroup, kWhole>(
          tile, [&](std::int64_t first, std::int64_t n, std::int64_t seen, std::int64_t width) {
            products.scores(group, kForwardKeys, Products::from(queries, first), n, keys, tile.k0, width);
            for (std::int64_t part = 0; part < n; part += Products::kSoftmaxRows) {
              const std::int64_t row = first + part,
                                 count = std::min<std::int64_t>(Products::kSoftmaxRows, n - part);
              const auto rescale =
                  softmax_rows<Products::kSoftmaxRows>(probs + part * kForwardKeys,
                                                       {.scores = group + part * kForwardKeys,
                                                        .stride = kForwardKeys,
                                                        .count = count,
                                                        .query = q0 + row,
                                                        .k0 = tile.k0,
                                                        .seen = tile.seen(row),
                                                        .width = width,
                                                        .scale = shape_.scale()},
                                                       dropout, most.data() + row, total.data() + row);
              for (std::int64_t i = 0; i < count && tile.k0 > 0; ++i) {
                const float factor = rescale[static_cast<std::size_t>(i)];
                if (factor == 1.0f) continue;
                float* to = sums + (row + i) * dp_;
                for (std::int64_t d = 0; d < dp_; d += kLanes) store(to + d, load(to + d) * factor);
              }
            }
            products.add(sums + first * dp_, n, Products::rows(probs, kForwardKeys), values, tile.k0, seen,
                         tile.k0 > 0);
          });
    });
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (head.lse) head.lse[q0 + i] = most[at] + std::log(total[at]);
      unpack_rows(head.out + (q0 + i) * head.out_stride, head.out_stride, sums + i * dp_, 1, shape_,
                  1 / total[at]);
    }
  }
}

template <typename T, typename Unit>
void HeadKernels<T, Unit>::backward(const HeadBackward<T>& head, const DropoutTile& dropout,
                                    Carver carve) const {
  Products products(shape_);
  const Unit* values_t = take_transposed(carve, products, head.v, head.qkv_stride);
  const Unit* keys_t = take_transposed(carve, products, head.k, head.qkv_stride);
  const Unit* keys = take_matrix(carve, products, head.k, head.qkv_stride);
  const Unit* queries = take_matrix(carve, products, head.q, head.qkv_stride);
  const Unit* d_out = take_matrix(carve, products, head.dout, head.out_stride);
  float* group = carve.take(kGroup * kKeys);  // scores
  float* d_group = carve.take(kGroup * kKeys);
  const LeftTile probs(carve), d_scores(carve);
  auto* copy = take<Source>(carve, copied_rows());
  auto* d_copy = take<Source>(carve, copied_rows());
  float* d_queries = carve.take(kQueries * dp_);
  float* d_keys = carve.take(shape_.matrix());
  float* d_values = carve.take(shape_.matrix());
  std::memset(d_keys, 0, static_cast<std::size_t>(2 * shape_.matrix()) * sizeof(float));
  float* delta = carve.take(shape_.padded_positions);
  fill_delta(delta, head, shape_);
  const float scale = shape_.scale();

  for (std::int64_t q0 = 0; q0 < shape_.positions; q0 += kQueries) {
    const std::int64_t rows = std::min(kQueries, shape_.positions - q0);
    const Rows query_rows = rows_of(head.q + q0 * head.qkv_stride, head.qkv_stride, rows, copy);
    const Rows d_out_rows = rows_of(head.dout + q0 * head.out_stride, head.out_stride, rows, d_copy);
    for_key_tiles<kWhole>(q0, rows, kKeys, [&](const Tile& tile) {
      for (const auto* left : {&probs, &d_scores}) left->begin(tile);
      for_query_groups<kGroup, kWhole>(
          tile, [&](std::int64_t first, std::int64_t n, std::int64_t seen, std::int64_t width) {
            products.scores(group, kKeys, Products::from(query_rows, first), n, keys_t, tile.k0, width);
            products.scores(d_group, kKeys, Products::from(d_out_rows, first), n, values_t, tile.k0, width);
            DropoutRow::Factors factors[kGroup];
            for (std::int64_t i = 0; i < n && dropout.active(); ++i)
              factors[i] = dropout.factors(q0 + first + i, tile.k0);
            for_seen(tile.seen(first), width, [&](std::int64_t c, auto&& part) {
              for (std::int64_t i = 0; i < n; ++i) {
                const std::int64_t query = q0 + first + i, from = i * kKeys + c, to = first * kKeys + from;
                const Vec p = part(i, exp(fma(load(group + from), scale, -head.lse[query])), 0);
                const Vec factor =
                    dropout.active() ? factors[i][static_cast<std::size_t>(c / kLanes)] : splat(1.0f);
                store(probs.rows + to, p * factor);
                store(d_scores.rows + to, p * fma(factor, load(d_group + from), -delta[query]));
              }
            });
            products.add(d_queries + first * dp_, n, d_scores.from_query(first), keys, tile.k0, seen,
                         tile.k0 > 0);
          });
      const auto prob_columns = probs.columns(tile), d_score_columns = d_scores.columns(tile);
      for_key_groups<kGroup>(tile, [&](std::int64_t first, std::int64_t n, std::int64_t query) {
        // Queries before `query` may not see the keys; their numbers are zero.
        const std::int64_t from = query / Products::kStep * Products::kStep, row = (tile.k0 + first) * dp_;
        products.add(d_values + row, n, Products::from(prob_columns, first, from), d_out, q0 + from,
                     rows - from);
        products.add(d_keys + row, n, Products::from(d_score_columns, first, from), queries, q0 + from,
                     rows - from);
      });
    });
    unpack_rows(head.dq + q0 * head.qkv_stride, head.qkv_stride, d_queries, rows, shape_, scale);
  }
  unpack_rows(head.dk, head.qkv_stride, d_keys, shape_.positions, shape_, scale);
  unpack_rows(head.dv, head.qkv_stride, d_values, shape_.positions, shape_, 1.0f);
}

// Calls f<type of the tensors, unit of the products>().
template <typename F>
void with_units(DType type, CpuLevel level, F&& f) {
#ifdef __AVX512BF16__
  if (type == DType::bf16 && level == CpuLevel::amx) return f.template operator()<bfloat16, TilePair>();
  if (type == DType::bf16) return f.template operator()<bfloat16, Pair>();
#endif
  static_cast<void>(level);
  with_type(type, [&]<typename T>() { f.template operator()<T, float>(); });
}

}  // namespace

std::int64_t attention_scratch(int threads, std::int64_t positions, std::int64_t channels, DType type,
                               CpuLevel level) {
  std::int64_t floats = 0;
  with_units(type, level, [&]<typename T, typename Unit>() {
    floats = floats_apart(HeadKernels<T, Unit>(positions, 1, channels).backward_scratch());
  });
  return threads * floats;
}

void CpuBackend::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                   std::int64_t first_head, const Dropout& dropout) {
  const std::int64_t width = qkv.dim(3) * qkv.dim(4);
  with_units(qkv.dtype, level_, [&]<typename T, typename Unit>() {
    const HeadKernels<T, Unit> kernels(qkv.dim(1), qkv.dim(3), qkv.dim(4));
    const HeadShape& shape = kernels.shape();
    const std::int64_t per_thread = floats_apart(kernels.forward_scratch());
    float* area = scratch(team_.size() * per_thread);
    team_.run(qkv.dim(0) * shape.heads, [&](std::int64_t task, int member) {
      const HeadPlace at(shape, task);
      const T* q = qkv.as<T>() + at.qkv;
      kernels.forward({.out = out.as<T>() + at.out,
                       .lse = lse ? lse.as<float>() + task * shape.positions : nullptr,
                       .q = q,
                       .k = q + width,
                       .v = q + 2 * width,
                       .qkv_stride = 3 * width,
                       .out_stride = width},
                      DropoutTile(dropout, first_head + at.head, at.sequence), {area + member * per_thread});
    });
  });
}

void CpuBackend::attention_backward(const AttentionBackward& args) {
  const auto& [dqkv, dout, out, lse, qkv, first_head, dropout] = args;
  const std::int64_t width = qkv.dim(3) * qkv.dim(4);
  with_units(qkv.dtype, level_, [&]<typename T, typename Unit>() {
    const HeadKernels<T, Unit> kernels(qkv.dim(1), qkv.dim(3), qkv.dim(4));
    const HeadShape& shape = kernels.shape();
    const std::int64_t per_thread = floats_apart(kernels.backward_scratch());
    float* area = scratch(team_.size() * per_thread);
    team_.run(qkv.dim(0) * shape.heads, [&](std::int64_t task, int member) {
      const HeadPlace at(shape, task);
      const T* q = qkv.as<T>() + at.qkv;
      T* dq = dqkv.as<T>() + at.qkv;
      kernels.backward({.dq = dq,
                        .dk = dq + width,
                        .dv = dq + 2 * width,
                        .dout = dout.as<T>() + at.out,
                        .out = out.as<T>() + at.out,
                        .lse = lse.as<float>() + task * shape.positions,
                        .q = q,
                        .k = q + width,
                        .v = q + 2 * width,
                        .qkv_stride = 3 * width,
                        .out_stride = width},
                       DropoutTile(dropout, first_head + at.head, at.sequence), {area + member * per_thread});
    });
  });
}

}  // namespace shoal::cpu
