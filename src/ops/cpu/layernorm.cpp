// Layer norm, the residual stream around it, and column sums: the gradients of biases and of norms.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/philox_simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr std::int64_t kRowBlock = 64;  // rows of one thread's partial sums; fixes the order of column sums

std::int64_t row_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// The tensor [columns] that gets sums of columns, or adds them; empty where nobody asks for them.
struct ColumnSums {
  Tensor out;
  bool add = true;
};

// Each of `sums` [columns] gets the sum over blocks of its part of parts [blocks, stride], in which those
// that are there follow one another.
void fold_parts(ThreadTeam& team, std::initializer_list<ColumnSums> sums, const float* parts,
                std::int64_t blocks, std::int64_t columns, std::int64_t stride) {
  constexpr std::int64_t kColumns = 256;
  const std::int64_t runs = (columns + kColumns - 1) / kColumns;
  team.run(std::ssize(sums) * runs, [&](std::int64_t task, int) {
    const auto& [out, add] = sums.begin()[task / runs];
    if (!out) return;
    const std::int64_t first = task % runs * kColumns;
    const float* from = parts + task / runs * columns + first;
    with_type(out.dtype, [&]<typename G>() {
      for_lanes(std::min(kColumns, columns - first), [&](std::int64_t i, std::int64_t live) {
        Vec total{};
        for (std::int64_t block = 0; block < blocks; ++block)
          total += load_n(from + block * stride + i, live);
        G* to = out.as<G>() + first + i;
        store_n(to, add ? load_n(to, live) + total : total, live);
      });
    });
  });
}

// The factors of a branch of the residual stream [B, T, C] under dropout, 1 without it.
class BranchFactors {
 public:
  BranchFactors(const Dropout& dropout, const Tensor& stream)
      : dropout_(dropout),
        mask_(dropout, dropout.site),
        positions_(stream.dim(1)),
        columns_(stream.columns()) {}

  // f(column, live lanes, factor) over a row
  template <typename F>
  void for_row(std::int64_t row, F&& f) const {
    if (dropout_.active()) {
      for_dropout_row(mask_, dropout_.window.row(row / positions_, row % positions_), columns_, f);
    } else {
      for_lanes(columns_, [&](std::int64_t c, std::int64_t live) { f(c, live, splat(1.0f)); });
    }
  }

 private:
  const Dropout& dropout_;
  DropoutRow mask_;
  std::int64_t positions_, columns_;
};

// A row of residual_forward, and of residual_backward.
template <typename T, typename S>
void add_branch(S* out, const S* residual, const T* branch, const BranchFactors& factors, std::int64_t row) {
  factors.for_row(row, [&](std::int64_t c, std::int64_t live, Vec factor) {
    store_n(out + c, load_n(residual + c, live) + factor * load_n(branch + c, live), live);
  });
}
template <typename T, typename S>
void take_branch(T* dbranch, const S* dout, const BranchFactors& factors, std::int64_t row) {
  factors.for_row(row, [&](std::int64_t c, std::int64_t live, Vec factor) {
    store_n(dbranch + c, factor * load_n(dout + c, live), live);
  });
}

// A row of layernorm_forward; beta may be null.
template <typename T, typename S>
[[gnu::always_inline]] inline void normalize_row(T* y, float& mean, float& rstd, const S* x, const T* gamma,
                                                 const T* beta, std::int64_t columns) {
  const auto inverse = 1.0f / static_cast<float>(columns);
  Vec total{};
  for_lanes(columns, [&](std::int64_t c, std::int64_t live) { total += load_n(x + c, live); });
  const float m = sum(total) * inverse;
  Vec squares{};
  for_lanes(columns, [&](std::int64_t c, std::int64_t live) {
    Vec d = load_n(x + c, live) - m;
    if (live < kLanes) {
      for (std::int64_t lane = live; lane < kLanes; ++lane) d[lane] = 0;
    }
    squares = fma(d, d, squares);
  });
  const float r = 1.0f / std::sqrt(sum(squares) * inverse + kEpsilon);
  for_lanes(columns, [&](std::int64_t c, std::int64_t live) {
    const Vec shift = beta ? load_n(beta + c, live) : Vec{};
    store_n(y + c, fma((load_n(x + c, live) - m) * r, load_n(gamma + c, live), shift), live);
  });
  mean = m;
  rstd = r;
}

// Calls f.template operator()<T, S>(row, the offset of its first element) for all rows of a stream, with the
// types of the computation and of the stream.
template <typename F>
void for_stream_rows(ThreadTeam& team, DType compute, const Tensor& stream, F&& f) {
  const std::int64_t columns = stream.columns();
  with_types(compute, stream.dtype, [&]<typename T, typename S>() {
    for_blocks(team, stream.rows(), rows_per_block(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) f.template operator()<T, S>(row, row * columns);
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
  fold_parts(team_, {{out}}, parts, row_blocks(rows), columns, columns);
}

void CpuBackend::residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                                  const Dropout& dropout) {
  const BranchFactors factors(dropout, out);
  for_stream_rows(team_, branch.dtype, out, [&]<typename T, typename S>(std::int64_t row, std::int64_t at) {
    add_branch(out.as<S>() + at, residual.as<S>() + at, branch.as<T>() + at, factors, row);
  });
}

void CpuBackend::residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) {
  const BranchFactors factors(dropout, dout);
  for_stream_rows(team_, dbranch.dtype, dout, [&]<typename T, typename S>(std::int64_t row, std::int64_t at) {
    take_branch(dbranch.as<T>() + at, dout.as<S>() + at, factors, row);
  });
}

void CpuBackend::layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                   const Tensor& gamma, const Tensor& beta) {
  const std::int64_t columns = x.columns();
  for_stream_rows(team_, y.dtype, x, [&]<typename T, typename S>(std::int64_t row, std::int64_t at) {
    normalize_row(y.as<T>() + at, mean.as<float>()[row], rstd.as<float>()[row], x.as<S>() + at, gamma.as<T>(),
                  beta.as<T>(), columns);
  });
}

void CpuBackend::residual_layernorm_forward(const ResidualLayerNorm& args) {
  const auto& [out, y, mean, rstd, residual, branch, dropout, gamma, beta] = args;
  const std::int64_t columns = out.columns();
  const BranchFactors factors(dropout, out);
  for_stream_rows(team_, y.dtype, out, [&]<typename T, typename S>(std::int64_t row, std::int64_t at) {
    add_branch(out.as<S>() + at, residual.as<S>() + at, branch.as<T>() + at, factors, row);
    normalize_row(y.as<T>() + at, mean.as<float>()[row], rstd.as<float>()[row], out.as<S>() + at,
                  gamma.as<T>(), beta.as<T>(), columns);
  });
}

void CpuBackend::layernorm_backward(const LayerNormBackward& args) {
  layernorm_residual_backward({.norm = args});
}

void CpuBackend::layernorm_residual_backward(const LayerNormResidualBackward& args) {
  const auto& [dx, dgamma, dbeta, dy, x, gamma, mean, rstd] = args.norm;
  const std::int64_t rows = x.rows(), columns = x.columns();
  const auto inverse = 1.0f / static_cast<float>(columns);
  const BranchFactors factors(args.dropout, dx);
  // For each block of rows the sums for dgamma, for dbeta and, where they are asked for, of dx.
  const std::int64_t part_columns = (args.sums ? 3 : 2) * columns;
  float* parts = scratch(column_sum_scratch(rows, part_columns));
  with_types(dy.dtype, x.dtype, [&]<typename T, typename S>() {
    for_blocks(team_, rows, kRowBlock, [&](std::int64_t begin, std::int64_t end) {
      float* part_gamma = parts + begin / kRowBlock * part_columns;
      float *part_beta = part_gamma + columns, *part_dx = part_beta + columns;
      std::memset(part_gamma, 0, static_cast<std::size_t>(part_columns) * sizeof(float));
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
          const Vec before = args.overwrite ? Vec{} : load_n(out + c, live);
          store_n(out + c, fma(fma(normal, -mean_gx, g - mean_g), r, before), live);
        });
        for_lanes(args.sums ? columns : 0, [&](std::int64_t c, std::int64_t live) {
          store_n(part_dx + c, load_n(part_dx + c, live) + load_n(out + c, live), live);
        });
        if (args.dbranch) take_branch(args.dbranch.as<T>() + row * columns, out, factors, row);
      }
    });
  });
  fold_parts(team_, {{dgamma}, {dbeta}, {args.sums, false}}, parts, row_blocks(rows), columns, part_columns);
}

}  // namespace shoal::cpu
