// Layer norm: a warp per row, and in the backward pass a block for some rows.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/reductions.cuh"

namespace shoal::cuda {
namespace {

constexpr float kEpsilon = 1e-5f;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kWide = 4;             // neighbouring columns of a lane
constexpr std::int64_t kRows = 128;  // rows of one block's sums for the parameters' gradients, any width
constexpr int kMostChunks = 16;      // of kWarp * kWide columns, in a lane's registers
constexpr int kMostWarps = kMostChunks / 2;

// --- rows that fit a warp's registers: at most kChunks * 128 columns, aligned. Roundings are explicit, so
// that a norm has the same bits alone and fused with the residual stream.

template <int kChunks>
using Row = Floats<kWide>[kChunks];

__device__ inline std::int64_t column_of(int chunk) {
  return (chunk * kWarp + static_cast<int>(threadIdx.x) % kWarp) * kWide;
}

// The mask of a row, for one chunk after the other.
class RowMask {
 public:
  __device__ RowMask(const Mask& mask, std::int64_t row, std::int64_t positions)
      : mask_(mask), row_(mask.active ? mask.row(row / positions, row % positions) : 0) {}
  // All lanes take part, chunks in order.
  __device__ Floats<kWide> factors(int chunk) {
    if (!mask_.active) return {1, 1, 1, 1};
    kept_ =
        chunk % 2 == 0 ? kept_columns(mask_, row_, static_cast<std::uint32_t>(chunk / 2)) : kept_ >> kWide;
    return kept_factors(mask_, kept_);
  }

 private:
  const Mask& mask_;
  std::uint32_t row_, kept_ = 0;
};

// The input: x, or the residual stream plus a branch.
template <typename S>
struct Given {
  const S* x;

  template <int kChunks>
  __device__ void load_row(Row<kChunks>& values, std::int64_t row, std::int64_t columns) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::int64_t column = column_of(chunk);
      values[chunk] = column < columns ? load<kWide>(x + row * columns + column) : Floats<kWide>{};
    }
  }
};

template <typename T, typename S>
struct AfterBranch {
  S* out;
  const S* residual;
  const T* branch;
  std::int64_t positions;
  Mask mask;

  template <int kChunks>
  __device__ void load_row(Row<kChunks>& values, std::int64_t row, std::int64_t columns) const {
    // All loads first: a compiler moves none across a store, as `out` may be `residual`.
    Packed<S, kWide> before[kChunks];
    Packed<T, kWide> added[kChunks];
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::int64_t column = column_of(chunk), i = row * columns + column;
      before[chunk] = column < columns ? load_packed<kWide>(residual + i) : Packed<S, kWide>{};
      added[chunk] = column < columns ? load_packed<kWide>(branch + i) : Packed<T, kWide>{};
    }
    RowMask row_mask(mask, row, positions);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const auto factors = row_mask.factors(chunk);
      const std::int64_t column = column_of(chunk), i = row * columns + column;
      values[chunk] = widen(before[chunk]);
      if (column >= columns) continue;
      const auto term = widen(added[chunk]);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        values[chunk].at[j] = rounded<S>(fmaf(factors.at[j], term.at[j], values[chunk].at[j]));
      }
      store(out + i, values[chunk]);
    }
  }
};

// Blocks of a multiprocessor, as many as there are registers for.
constexpr int kForwardThreads = 128, kForwardWarps = kForwardThreads / kWarp;
template <int kChunks>
constexpr int kForwardBlocks = kChunks <= 6 ? 6 : (kChunks <= 13 ? 4 : 3);

template <typename T, int kChunks, typename Source>
__global__ void __launch_bounds__(kForwardThreads, kForwardBlocks<kChunks>)
    forward_kernel(T* y, float* mean, float* rstd, Source source, const T* gamma, const T* beta,
                   std::int64_t rows, std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kForwardWarps + warp;
  if (row >= rows) return;
  const float inverse = 1.0f / static_cast<float>(columns);
  Row<kChunks> values;
  source.template load_row<kChunks>(values, row, columns);
  float sum = 0;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) sum += values[chunk].at[i];
  }
  const float m = product(warp_sum(sum), inverse);
  float squares = 0;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if (column_of(chunk) >= columns) break;
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values[chunk].at[i] -= m;
      squares = fmaf(values[chunk].at[i], values[chunk].at[i], squares);
    }
  }
  const float r = 1.0f / sqrtf(fmaf(warp_sum(squares), inverse, kEpsilon));
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const std::int64_t column = column_of(chunk);
    if (column >= columns) break;
    const auto scale = load<kWide>(gamma + column);
    const auto shift = beta ? load<kWide>(beta + column) : Floats<kWide>{};
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values[chunk].at[i] = fmaf(product(values[chunk].at[i], r), scale.at[i], shift.at[i]);
    }
    store(y + row * columns + column, values[chunk]);
  }
  if (lane == 0) mean[row] = m, rstd[row] = r;
}

// --- few rows, as in generation, which wait for each other's loads and for nothing else: a block has a row.
// The row is the residual stream, plus a branch if there is one, without a mask.
constexpr int kRowThreads = kMostChunks * kWarp;

template <typename T, typename S>
__global__ void __launch_bounds__(kRowThreads)
    few_rows_kernel(T* y, float* mean, float* rstd, S* out, const S* x, const T* branch, const T* gamma,
                    const T* beta, std::int64_t columns) {
  __shared__ float sums[kMostChunks], squares[kMostChunks];
  const std::int64_t column = static_cast<std::int64_t>(threadIdx.x) * kWide, row = blockIdx.x,
                     at = row * columns + column;
  const bool mine = column < columns;
  const float inverse = 1.0f / static_cast<float>(columns);
  let_next_start();
  if (mine) {
    prefetch(gamma + column);
    if (beta) prefetch(beta + column);
  }
  wait_for_earlier();
  Floats<kWide> value{}, scale{}, shift{};
  if (mine) {
    value = load<kWide>(x + at);
    scale = load<kWide>(gamma + column);
    if (beta) shift = load<kWide>(beta + column);
    if (branch) {
      const auto term = load<kWide>(branch + at);
#pragma unroll
      for (int i = 0; i < kWide; ++i) value.at[i] = rounded<S>(value.at[i] + term.at[i]);
      store(out + at, value);
    }
  }
  float sum = 0, square = 0;
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum += value.at[i];
  const float m = product(block_sum<kRowThreads>(sum, sums), inverse);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    value.at[i] = mine ? value.at[i] - m : 0.0f;
    square = fmaf(value.at[i], value.at[i], square);
  }
  const float r = 1.0f / sqrtf(fmaf(block_sum<kRowThreads>(square, squares), inverse, kEpsilon));
  if (mine) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) value.at[i] = fmaf(product(value.at[i], r), scale.at[i], shift.at[i]);
    store(y + at, value);
  }
  if (threadIdx.x == 0) mean[row] = m, rstd[row] = r;
}

// --- the backward pass: a thread has the same columns of all rows of its block, so that it sums the
// gradients of gamma and beta in registers. A warp has 256 columns, a lane two times four: a block of the
// mask's.
constexpr int kHalves = 2, kWarpColumns = kHalves * kWarp * kWide;

__device__ inline int column_of_half(int half) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  return warp * kWarpColumns + half * kWarp * kWide + lane * kWide;
}

// The second output for a row of dx: none, or the gradient of the branch before.
struct NoBranch {
  struct Put {
    __device__ void operator()(int, std::int64_t, const Floats<kWide>&) const {}
  };
  // All lanes take part.
  __device__ Put row(std::int64_t) const { return {}; }
};

template <typename T>
struct BranchBefore {
  T* dbranch;
  std::int64_t positions;
  Mask mask;

  struct Put {
    T* dbranch;
    const Mask& mask;
    std::uint32_t kept;
    __device__ void operator()(int half, std::int64_t i, Floats<kWide> value) const {
      if (mask.active) {
        const auto factors = kept_factors(mask, kept >> (kWide * half));
#pragma unroll
        for (int j = 0; j < kWide; ++j) value.at[j] *= factors.at[j];
      }
      store(dbranch + i, value);
    }
  };
  __device__ Put row(std::int64_t row) const {
    const auto warp = static_cast<std::uint32_t>(threadIdx.x) / kWarp;
    return {dbranch, mask,
            mask.active ? kept_columns(mask, mask.row(row / positions, row % positions), warp) : 0};
  }
};

// parts [block of rows, 2 or 3, columns]: sums for dgamma, for dbeta, and of dx. With a narrow stream the
// next row's loads are in flight; with a wide one that was slower on an H200, since fewer blocks run at once.
template <bool kSums, typename T, typename S, typename Sink>
__global__ void backward_kernel(S* dx, bool fresh, Sink sink, float* parts, const T* dy, const S* x,
                                const T* gamma, const float* mean, const float* rstd, std::int64_t rows,
                                std::int64_t rows_of_block, int columns) {
  __shared__ float shared[2][kMostWarps][2];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  const float inverse = 1.0f / static_cast<float>(columns);
  const std::int64_t begin = blockIdx.x * rows_of_block,
                     end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
  Floats<kWide> scale[kHalves] = {}, sum_gamma[kHalves] = {}, sum_beta[kHalves] = {}, sum_dx[kHalves] = {};
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (column_of_half(h) < columns) scale[h] = load<kWide>(gamma + column_of_half(h));
  }
  struct Loaded {
    Packed<S, kWide> x[kHalves], dx[kHalves];
    Packed<T, kWide> dy[kHalves];
    float mean, rstd;
  };
  const auto load_row = [&](std::int64_t row) {
    Loaded loaded{};
    loaded.mean = mean[row];
    loaded.rstd = rstd[row];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const std::int64_t at = row * columns + column_of_half(h);
      if (column_of_half(h) >= columns) continue;
      loaded.x[h] = load_packed<kWide>(x + at);
      loaded.dy[h] = load_packed<kWide>(dy + at);
      if (!fresh) loaded.dx[h] = load_packed<kWide>(dx + at);
    }
    return loaded;
  };
  constexpr bool kAhead = sizeof(S) == 2;
  Loaded next{};
  if constexpr (kAhead) next = load_row(begin);
  int side = 0;
  for (std::int64_t row = begin; row < end; ++row, side = 1 - side) {
    Loaded now;
    if constexpr (kAhead) {
      now = next;
      if (row + 1 < end) next = load_row(row + 1);
    } else {
      now = load_row(row);
    }
    Floats<kWide> normal[kHalves], gradient[kHalves], out[kHalves];
    const float m = now.mean, r = now.rstd;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      normal[h] = widen(now.x[h]);
      gradient[h] = widen(now.dy[h]);
      out[h] = widen(now.dx[h]);
    }
    float sum_g = 0, sum_gn = 0;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (column_of_half(h) >= columns) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        float& n = normal[h].at[i];
        float& g = gradient[h].at[i];
        n = product(n - m, r);
        sum_gamma[h].at[i] = fmaf(g, n, sum_gamma[h].at[i]);
        sum_beta[h].at[i] += g;
        g = product(g, scale[h].at[i]);
        sum_g += g;
        sum_gn = fmaf(g, n, sum_gn);
      }
    }
    sum_g = warp_sum(sum_g);
    sum_gn = warp_sum(sum_gn);
    // Two buffers, so that one barrier is enough.
    if (lane == 0) {
      shared[side][warp][0] = sum_g;
      shared[side][warp][1] = sum_gn;
    }
    __syncthreads();
    float mean_g = 0, mean_gn = 0;
    for (int w = 0; w < warps; ++w) {
      mean_g += shared[side][w][0];
      mean_gn += shared[side][w][1];
    }
    mean_g = product(mean_g, inverse);
    mean_gn = product(mean_gn, inverse);
    const auto put = sink.row(row);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (column_of_half(h) >= columns) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        out[h].at[i] =
            rounded<S>(fmaf(r, fmaf(-normal[h].at[i], mean_gn, gradient[h].at[i] - mean_g), out[h].at[i]));
      }
      const std::int64_t at = row * columns + column_of_half(h);
      store(dx + at, out[h]);
      put(h, at, out[h]);
      if constexpr (kSums) {
#pragma unroll
        for (int i = 0; i < kWide; ++i) sum_dx[h].at[i] += out[h].at[i];
      }
    }
  }
  float* part = parts + static_cast<std::int64_t>(blockIdx.x) * (kSums ? 3 : 2) * columns;
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    if (column_of_half(h) >= columns) continue;
    store(part + column_of_half(h), sum_gamma[h]);
    store(part + columns + column_of_half(h), sum_beta[h]);
    if constexpr (kSums) store(part + 2 * columns + column_of_half(h), sum_dx[h]);
  }
}

// The rows of a block, for as many blocks as run at once on an H100 or H200, whose multiprocessors have
// registers for so many warps: a quarter of one has them for five, of 96 each. Not of the GPU at hand:
// another one may be less busy, but has the same bits.
std::int64_t rows_of_block(std::int64_t rows, std::int64_t warps) {
  constexpr std::int64_t kFewest = 8, kMultiprocessors = 132, kWarpsOfOne = 20;
  const std::int64_t each = ceil_div(rows, kWarpsOfOne / warps * kMultiprocessors);
  return each > kFewest ? each : kFewest;
}

// --- rows of any width and alignment

template <typename T, typename S>
__global__ void any_forward_kernel(T* y, float* mean, float* rstd, const S* x, const T* gamma, const T* beta,
                                   std::int64_t rows, std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= rows) return;
  const S* in = x + row * columns;
  const float inverse = 1.0f / static_cast<float>(columns);
  float sum = 0, squares = 0;
  for (std::int64_t c = lane; c < columns; c += kWarp) sum += widen(in[c]);
  const float m = warp_sum(sum) * inverse;
  for (std::int64_t c = lane; c < columns; c += kWarp) squares += (widen(in[c]) - m) * (widen(in[c]) - m);
  const float r = 1.0f / sqrtf(warp_sum(squares) * inverse + kEpsilon);
  for (std::int64_t c = lane; c < columns; c += kWarp) {
    y[row * columns + c] =
        narrow<T>((widen(in[c]) - m) * r * widen(gamma[c]) + (beta ? widen(beta[c]) : 0.0f));
  }
  if (lane == 0) mean[row] = m, rstd[row] = r;
}

template <typename T, typename S>
__global__ void any_backward_kernel(S* dx, const T* dy, const S* x, const T* gamma, const float* mean,
                                    const float* rstd, std::int64_t rows, std::int64_t columns) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= rows) return;
  const std::int64_t at = row * columns;
  const float m = mean[row], r = rstd[row], inverse = 1.0f / static_cast<float>(columns);
  float sum_g = 0, sum_gn = 0;
  for (std::int64_t c = lane; c < columns; c += kWarp) {
    const float g = widen(dy[at + c]) * widen(gamma[c]);
    sum_g += g;
    sum_gn += g * ((widen(x[at + c]) - m) * r);
  }
  const float mean_g = warp_sum(sum_g) * inverse, mean_gn = warp_sum(sum_gn) * inverse;
  for (std::int64_t c = lane; c < columns; c += kWarp) {
    const float g = widen(dy[at + c]) * widen(gamma[c]);
    dx[at + c] = narrow<S>(widen(dx[at + c]) + r * (g - mean_g - (widen(x[at + c]) - m) * r * mean_gn));
  }
}

// A thread sums a column of a block of rows.
template <typename T, typename S>
__global__ void any_parts_kernel(float* parts, const T* dy, const S* x, const float* mean, const float* rstd,
                                 std::int64_t rows, std::int64_t columns) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kRows,
                     end = begin + kRows < rows ? begin + kRows : rows;
  float sum_gamma = 0, sum_beta = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const float gradient = widen(dy[row * columns + column]);
    sum_gamma += gradient * ((widen(x[row * columns + column]) - mean[row]) * rstd[row]);
    sum_beta += gradient;
  }
  float* part = parts + blockIdx.x * 2 * columns;
  part[column] = sum_gamma;
  part[columns + column] = sum_beta;
}

// Calls f.template operator()<chunks>() with at least as many chunks as the columns need.
template <typename F>
void with_chunks(std::int64_t columns, F&& f) {
  const std::int64_t chunks = ceil_div(columns, kWarp * kWide);
  if (chunks <= 1) return f.template operator()<1>();
  if (chunks <= 3) return f.template operator()<3>();
  if (chunks <= 6) return f.template operator()<6>();
  if (chunks <= 8) return f.template operator()<8>();
  if (chunks <= 10) return f.template operator()<10>();
  if (chunks <= 13) return f.template operator()<13>();
  return f.template operator()<kMostChunks>();
}

bool fits(std::int64_t columns) { return columns % kWide == 0 && columns <= kMostChunks * kWarp * kWide; }

}  // namespace

void CudaBackend::layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                    const Tensor& gamma, const Tensor& beta) {
  const std::int64_t rows = x.rows(), columns = x.columns();
  with_types(y.dtype, x.dtype, [&]<typename T, typename S>() {
    const auto run = [&](auto kernel, int threads, auto from) {
      launch(kernel, blocks(ceil_div(rows, threads / kWarp)), threads, 0, stream_.get(), y.as<T>(),
             mean.as<float>(), rstd.as<float>(), from, gamma.as<T>(), beta.as<T>(), rows, columns);
    };
    if (!fits(columns) || !aligned(y.data, x.data, gamma.data, beta.data)) {
      run(any_forward_kernel<T, S>, kThreads, x.as<S>());
    } else if (rows <= kFewRows) {
      launch_early(few_rows_kernel<T, S>, blocks(rows), kRowThreads, stream_.get(), y.as<T>(),
                   mean.as<float>(), rstd.as<float>(), nullptr, x.as<S>(), nullptr, gamma.as<T>(),
                   beta.as<T>(), columns);
    } else {
      with_chunks(columns, [&]<int kChunks>() {
        run(forward_kernel<T, kChunks, Given<S>>, kForwardThreads, Given<S>{x.as<S>()});
      });
    }
  });
}

void CudaBackend::residual_layernorm_forward(const ResidualLayerNorm& args) {
  const auto& [out, y, mean, rstd, residual, branch, dropout, gamma, beta] = args;
  const std::int64_t rows = out.rows(), columns = out.columns();
  const bool few = rows <= kFewRows;
  if (!fits(columns) || !aligned(out.data, residual.data, branch.data, y.data, gamma.data, beta.data) ||
      (few && dropout.active())) {
    return Backend::residual_layernorm_forward(args);
  }
  with_types(y.dtype, out.dtype, [&]<typename T, typename S>() {
    if (few) {
      return launch_early(few_rows_kernel<T, S>, blocks(rows), kRowThreads, stream_.get(), y.as<T>(),
                          mean.as<float>(), rstd.as<float>(), out.as<S>(), residual.as<S>(), branch.as<T>(),
                          gamma.as<T>(), beta.as<T>(), columns);
    }
    const AfterBranch<T, S> stream{out.as<S>(), residual.as<S>(), branch.as<T>(), out.dim(1), Mask(dropout)};
    with_chunks(columns, [&]<int kChunks>() {
      launch(forward_kernel<T, kChunks, AfterBranch<T, S>>, blocks(ceil_div(rows, kForwardWarps)),
             kForwardThreads, 0, stream_.get(), y.as<T>(), mean.as<float>(), rstd.as<float>(), stream,
             gamma.as<T>(), beta.as<T>(), rows, columns);
    });
  });
}

void CudaBackend::layernorm_backward(const LayerNormBackward& args) {
  const auto& [dx, dgamma, dbeta, dy, x, gamma, mean, rstd] = args;
  if (fits(x.columns()) && aligned(dx.data, dy.data, x.data, gamma.data)) {
    return layernorm_residual_backward({.norm = args});
  }
  const std::int64_t rows = x.rows(), columns = x.columns(), row_blocks = ceil_div(rows, kRows);
  auto* parts = scratch_.take<float>(row_blocks * 2 * columns);
  with_types(dy.dtype, x.dtype, [&]<typename T, typename S>() {
    launch(any_backward_kernel<T, S>, blocks(ceil_div(rows, kWarps)), kThreads, 0, stream_.get(), dx.as<S>(),
           dy.as<T>(), x.as<S>(), gamma.as<T>(), mean.as<float>(), rstd.as<float>(), rows, columns);
    launch(any_parts_kernel<T, S>, blocks(row_blocks, ceil_div(columns, kThreads)), kThreads, 0,
           stream_.get(), parts, dy.as<T>(), x.as<S>(), mean.as<float>(), rstd.as<float>(), rows, columns);
  });
  fold_parts(dgamma, dbeta, {}, parts, row_blocks, 2 * columns, stream_.get());
}

// At a border between stages of a pipeline another op meets dx: where bits must not depend on the layout,
// that op's sums are the only ones.
bool CudaBackend::norm_backward_sums() const { return !options_.ordered; }

void CudaBackend::layernorm_residual_backward(const LayerNormResidualBackward& args) {
  const auto& [norm, overwrite, dbranch, dropout, sums] = args;
  const auto& [dx, dgamma, dbeta, dy, x, gamma, mean, rstd] = norm;
  const std::int64_t rows = x.rows(), columns = x.columns();
  if (!fits(columns) || !aligned(dx.data, dbranch.data, dy.data, x.data, gamma.data)) {
    Backend::layernorm_residual_backward(args);
    if (!sums) return;
    zero(sums);
    return add_column_sums(sums, dx);
  }
  const std::int64_t warps = ceil_div(columns, kWarpColumns), each = rows_of_block(rows, warps),
                     row_blocks = ceil_div(rows, each), stride = (sums ? 3 : 2) * columns;
  auto* parts = scratch_.take<float>(row_blocks * stride);
  with_types(dy.dtype, x.dtype, [&]<typename T, typename S>() {
    const auto run = [&](const auto& sink) {
      using Sink = std::remove_cvref_t<decltype(sink)>;
      launch(sums ? backward_kernel<true, T, S, Sink> : backward_kernel<false, T, S, Sink>,
             blocks(row_blocks), static_cast<unsigned>(warps * kWarp), 0, stream_.get(), dx.as<S>(),
             overwrite, sink, parts, dy.as<T>(), x.as<S>(), gamma.as<T>(), mean.as<float>(), rstd.as<float>(),
             rows, each, columns);
    };
    if (dbranch) {
      run(BranchBefore<T>{dbranch.as<T>(), dx.dim(1), Mask(dropout)});
    } else {
      run(NoBranch{});
    }
  });
  fold_parts(dgamma, dbeta, sums, parts, row_blocks, stride, stream_.get());
}

}  // namespace shoal::cuda
