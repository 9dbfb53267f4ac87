// Layer norm, and column sums: the gradients of its parameters and of biases.
#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr std::int64_t kRowBlock = 64;  // rows of one thread's partial sums; fixes the order of column sums

std::int64_t row_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// out g [columns] += sum over blocks of parts [blocks, stride]
void fold_parts(ThreadTeam& team, const Tensor& out, const float* parts, std::int64_t blocks,
                std::int64_t stride) {
  with_type(out.dtype, [&]<typename G>() {
    for_blocks(team, out.count(), 256, [&](std::int64_t begin, std::int64_t end) {
      for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
        Vec total{};
        for (std::int64_t block = 0; block < blocks; ++block) {
          total += load_n(parts + block * stride + begin + i, live);
        }
        G* to = out.as<G>() + begin + i;
        store_n(to, load_n(to, live) + total, live);
      });
    });
  });
}

}  // namespace

std::int64_t column_sum_scratch(std::int64_t rows, std::int64_t columns) {
  return row_blocks(rows) * columns;
}

void CpuBackend::add_column_sums(const Tensor& out, const Tensor& x) {
  const std::int64_t rows = x.rows(), columns = x.columns();
  float* parts = scratch(column_sum_scratch(rows, columns));
  constexpr int kAtOnce = 4;  // vectors: whole cache lines of a row, and sums that do not wait for each other
  with_type(x.dtype, [&]<typename T>() {
    for_blocks(team_, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
      float* part = parts + begin / kRowBlock * columns;
      std::int64_t c = 0;
      for (; c + kAtOnce * kLanes <= columns; c += kAtOnce * kLanes) {
        Vec totals[kAtOnce] = {};
        for (std::int64_t row = begin; row < end; ++row) {
          const T* from = x.as<T>() + row * columns + c;
          fetch_later_row(from, columns, kAtOnce * kLanes);
#pragma GCC unroll 4
          for (int i = 0; i < kAtOnce; ++i) totals[i] += load(from + i * kLanes);
        }
        std::memcpy(part + c, totals, sizeof totals);
      }
      for_lanes(columns - c, [&](std::int64_t i, std::int64_t live) {
        Vec total{};
        for (std::int64_t row = begin; row < end; ++row)
          total += load_n(x.as<T>() + row * columns + c + i, live);
        store_n(part + c + i, total, live);
      });
    });
  });
  fold_parts(team_, out, parts, row_blocks(rows), columns);
}

void CpuBackend::layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                   const Tensor& gamma, const Tensor& beta) {
  const std::int64_t columns = x.columns();
  const auto inverse = 1.0f / static_cast<float>(columns);
  with_types(y.dtype, x.dtype, [&]<typename T, typename S>() {
    for_blocks(team_, x.rows(), rows_per_block(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const S* in = x.as<S>() + row * columns;
        Vec total{};
        for_lanes(columns, [&](std::int64_t c, std::int64_t live) { total += load_n(in + c, live); });
        const float m = cpu::sum(total) * inverse;
        Vec squares{};
        for_lanes(columns, [&](std::int64_t c, std::int64_t live) {
          Vec d = load_n(in + c, live) - m;
          if (live < kLanes) {
            for (std::int64_t lane = live; lane < kLanes; ++lane) d[lane] = 0;
          }
          squares = fma(d, d, squares);
        });
        const float r = 1.0f / std::sqrt(cpu::sum(squares) * inverse + kEpsilon);
        for_lanes(columns, [&](std::int64_t c, std::int64_t live) {
          const Vec shift = beta ? load_n(beta.as<T>() + c, live) : Vec{};
          const Vec value = fma((load_n(in + c, live) - m) * r, load_n(gamma.as<T>() + c, live), shift);
          store_n(y.as<T>() + row * columns + c, value, live);
        });
        mean.as<float>()[row] = m;
        rstd.as<float>()[row] = r;
      }
    });
  });
}

void CpuBackend::layernorm_backward(const LayerNormBackward& args) {
  const auto& [dx, dgamma, dbeta, dy, x, gamma, mean, rstd] = args;
  const std::int64_t rows = x.rows(), columns = x.columns();
  const auto inverse = 1.0f / static_cast<float>(columns);
  // For each block of rows the sums for dgamma, then those for dbeta.
  float* parts = scratch(column_sum_scratch(rows, 2 * columns));
  with_types(dy.dtype, x.dtype, [&]<typename T, typename S>() {
    for_blocks(team_, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
      float* part_gamma = parts + begin / kRowBlock * 2 * columns;
      float* part_beta = part_gamma + columns;
      std::memset(part_gamma, 0, static_cast<std::size_t>(2 * columns) * sizeof(float));
      for (std::int64_t row = begin; row < end; ++row) {
        const S* in = x.as<S>() + row * columns;
        const T* grad = dy.as<T>() + row * columns;
        S* out = dx.as<S>() + row * columns;
        const float m = mean.as<float>()[row], r = rstd.as<float>()[row];
        Vec sum_g{}, sum_gx{};
        for_lanes(columns, [&](std::int64_t c, std::int64_t live) {
          const Vec d = load_n(grad + c, live);
          const Vec normal = (load_n(in + c, live) - m) * r;
          const Vec g = d * load_n(gamma.as<T>() + c, live);
          sum_g += g;
          sum_gx = fma(g, normal, sum_gx);
          store_n(part_gamma + c, fma(d, normal, load_n(part_gamma + c, live)), live);
          store_n(part_beta + c, load_n(part_beta + c, live) + d, live);
        });
        const float mean_g = cpu::sum(sum_g) * inverse, mean_gx = cpu::sum(sum_gx) * inverse;
        for_lanes(columns, [&](std::int64_t c, std::int64_t live) {
          const Vec normal = (load_n(in + c, live) - m) * r;
          const Vec g = load_n(grad + c, live) * load_n(gamma.as<T>() + c, live);
          store_n(out + c, fma(fma(normal, -mean_gx, g - mean_g), r, load_n(out + c, live)), live);
        });
      }
    });
  });
  fold_parts(team_, dgamma, parts, row_blocks(rows), 2 * columns);
  if (dbeta) fold_parts(team_, dbeta, parts + columns, row_blocks(rows), 2 * columns);
}

}  // namespace shoal::cpu
