#include "ops/cuda/reductions.cuh"

#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// --- sums in double, of equal pieces
constexpr std::int64_t kBlock = 16384;  // elements of one block's sum
constexpr std::int64_t kShort = 4096;   // elements of a piece that a warp sums
// Neighbouring elements that a thread loads at once.
template <typename T>
constexpr int kWide = 16 / sizeof(T);

// |x|, but 0 for a subnormal number. A GPU has few units that convert to double: here bits only move, and the
// exponent gets another bias. Without branches, so that loads are not held up.
__device__ double magnitude(float x) {
  constexpr std::uint32_t kInfinity = 0x7f800000u, kSmallest = 0x00800000u;
  constexpr std::uint32_t kBias = (1023u - 127u) << 20;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
  const std::uint32_t high = (bits >> 3) + (bits >= kInfinity ? 2 * kBias : kBias);
  const std::uint64_t moved = static_cast<std::uint64_t>(high) << 32 | bits << 29;
  return std::bit_cast<double>(bits < kSmallest ? 0 : moved);
}

// The sum of the elements of thread `first` of `threads`, which have kWide neighbours in turns. The order is
// the same for any alignment.
template <bool kSquares, bool kAligned, typename T>
__device__ double sum_of_thread(const T* from, std::int64_t n, int first, int threads) {
  constexpr int kEach = kWide<T>;
  double sum = 0;
  const auto add = [&](float element) {
    if constexpr (kSquares) {
      const double size = magnitude(element);
      sum += size * size;
    } else {
      sum += element;
    }
  };
  const auto add_next = [&]<int kCount>(std::int64_t at) {
    Floats<kEach> values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const T* next = from + at + k * threads * kEach;
      if constexpr (kAligned) {
        values[k] = load<kEach>(next);
      } else {
#pragma unroll
        for (int j = 0; j < kEach; ++j) values[k].at[j] = widen(next[j]);
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) add(values[k].at[j]);
    }
  };
  constexpr int kAtOnce = 4;
  std::int64_t i = first * kEach;
  for (; i + (kAtOnce - 1) * threads * kEach + kEach <= n; i += kAtOnce * threads * kEach) {
    add_next.template operator()<kAtOnce>(i);
  }
  for (; i + kEach <= n; i += threads * kEach) add_next.template operator()<1>(i);
  for (; i < n; ++i) add(widen(from[i]));
  return sum;
}

// part [piece, block] = sum of that block of elements
template <bool kSquares, bool kAligned, typename T>
__global__ void sum_kernel(double* parts, const T* x, std::int64_t length, std::int64_t blocks_of_piece) {
  __shared__ double shared[kWarps];
  const std::int64_t piece = blockIdx.x / blocks_of_piece, block = blockIdx.x % blocks_of_piece;
  const std::int64_t left = length - block * kBlock, n = left < kBlock ? left : kBlock;
  const double sum = block_sum<kThreads>(
      sum_of_thread<kSquares, kAligned, T>(x + piece * length + block * kBlock, n, threadIdx.x, kThreads),
      shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// total [piece] += sum of a short piece, by a warp: the blocks of a gradient's norm have 1024 elements. A
// block of threads for each would wait for its loads, its own sum and the total in turn.
template <bool kSquares, bool kAligned, typename T>
__global__ void short_sums_kernel(double* totals, const T* x, std::int64_t pieces, std::int64_t length) {
  const std::int64_t piece = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (piece >= pieces) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const double before = lane == 0 ? totals[piece] : 0;
  const double sum = warp_sum(sum_of_thread<kSquares, kAligned, T>(x + piece * length, length, lane, kWarp));
  if (lane == 0) totals[piece] = before + sum;
}

__global__ void fold_sums_kernel(double* totals, const double* parts, std::int64_t blocks_of_piece) {
  __shared__ double shared[kWarps];
  const double* from = parts + blockIdx.x * blocks_of_piece;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < blocks_of_piece; i += kThreads) sum += from[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) totals[blockIdx.x] += sum;
}

// One block; thread t adds the numbers t, t + kLanes, ... of all rows, read one after the other.
constexpr unsigned kLanes = 1024;
__global__ void __launch_bounds__(kLanes)
    sum_rows_kernel(double* total, const double* x, unsigned rows, unsigned stride, unsigned n) {
  __shared__ double shared[kLanes / kWarp];
  double sum = 0;
#pragma unroll 8
  for (unsigned i = threadIdx.x; i < rows * n; i += kLanes) sum += x[i / n * stride + i % n];
  sum = block_sum<kLanes>(sum, shared);
  if (threadIdx.x == 0) *total += sum;
}

// --- sums in float, over rows
constexpr std::int64_t kRows = 256;  // rows of one block's sums

// A warp sums kWarp * kWidth columns over every kWarps-th row of its block.
template <typename T, int kWidth>
__global__ void column_sums_kernel(float* parts, const T* x, std::int64_t rows, std::int64_t columns) {
  constexpr int kColumns = kWarp * kWidth;
  __shared__ float shared[kWarps][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kColumns, column = first + lane * kWidth;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * kRows,
                     end = begin + kRows < rows ? begin + kRows : rows;
  Floats<kWidth> sum{};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      const auto values = load<kWidth>(x + row * columns + column);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum.at[i] += values.at[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shared[warp][lane * kWidth + i] = sum.at[i];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= kColumns || first + mine >= columns) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += shared[i][mine];
  parts[blockIdx.y * columns + first + mine] = total;
}

// A lane sums a column, a warp every kFoldWarps-th part. grid.y is which of the sums.
constexpr int kFoldWarps = 32;
template <typename T>
__global__ void __launch_bounds__(kFoldWarps* kWarp)
    fold_parts_kernel(T* out, T* second, float* third, const float* parts, std::int64_t blocks_of_rows,
                      std::int64_t stride, std::int64_t columns) {
  if (blockIdx.y == 1 && !second) return;
  __shared__ float shared[kFoldWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  const float* from = parts + blockIdx.y * columns + column;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (std::int64_t i = warp; i < blocks_of_rows; i += kFoldWarps) sum += from[i * stride];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= columns) return;
  float total = 0;
#pragma unroll
  for (int i = 0; i < kFoldWarps; ++i) total += shared[i][lane];
  if (blockIdx.y == 2) {
    third[column] = total;
    return;
  }
  T& to = (blockIdx.y == 0 ? out : second)[column];
  to = narrow<T>(widen(to) + total);
}

}  // namespace

void fold_parts(const Tensor& out, const Tensor& second, const Tensor& third, const float* parts,
                std::int64_t blocks_of_rows, std::int64_t stride, cudaStream_t stream) {
  const std::int64_t columns = out.count(), which = third ? 3 : second ? 2 : 1;
  with_type(out.dtype, [&]<typename T>() {
    launch(fold_parts_kernel<T>, blocks(ceil_div(columns, kWarp), which), kFoldWarps * kWarp, 0, stream,
           out.as<T>(), second.as<T>(), third.as<float>(), parts, blocks_of_rows, stride, columns);
  });
}

void CudaBackend::add_column_sums(const Tensor& out, const Tensor& x) {
  const std::int64_t rows = x.rows(), columns = x.columns(), row_blocks = ceil_div(rows, kRows);
  auto* parts = scratch_.take<float>(row_blocks * columns);
  with_type(x.dtype, [&]<typename T>() {
    constexpr int kEach = 16 / sizeof(T);
    if (aligned(x.data) && columns % kEach == 0) {
      launch(column_sums_kernel<T, kEach>, blocks(ceil_div(columns, kWarp * kEach), row_blocks), kThreads, 0,
             stream_.get(), parts, x.as<T>(), rows, columns);
    } else {
      launch(column_sums_kernel<T, 1>, blocks(ceil_div(columns, kWarp), row_blocks), kThreads, 0,
             stream_.get(), parts, x.as<T>(), rows, columns);
    }
  });
  fold_parts(out, {}, {}, parts, row_blocks, columns, stream_.get());
}

void CudaBackend::add_sums(const Tensor& totals, const Tensor& x, bool squares) {
  if (x.count() == 0) return;
  const std::int64_t pieces = totals.count(), length = x.count() / pieces;
  cudaStream_t stream = stream_.get();
  const auto run_aligned = [&]<bool kSquares, bool kAligned, typename T>() {
    if (length <= kShort) {
      return launch(short_sums_kernel<kSquares, kAligned, T>, blocks(ceil_div(pieces, kWarps)), kThreads, 0,
                    stream, totals.as<double>(), x.as<T>(), pieces, length);
    }
    const std::int64_t of_piece = ceil_div(length, kBlock);
    auto* parts = scratch_.take<double>(pieces * of_piece);
    launch(sum_kernel<kSquares, kAligned, T>, blocks(pieces * of_piece), kThreads, 0, stream, parts,
           x.as<T>(), length, of_piece);
    launch(fold_sums_kernel, blocks(pieces), kThreads, 0, stream, totals.as<double>(), parts, of_piece);
  };
  const auto run = [&]<bool kSquares, typename T>() {
    aligned(x.data) && length % kWide<T> == 0 ? run_aligned.template operator()<kSquares, true, T>()
                                              : run_aligned.template operator()<kSquares, false, T>();
  };
  if (!squares) return run.template operator()<false, float>();
  with_type(x.dtype, [&]<typename T>() { run.template operator()<true, T>(); });
}

void CudaBackend::sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) {
  if (n == 0) return;
  launch(sum_rows_kernel, 1, kLanes, 0, stream_.get(), total.as<double>(), x.as<double>(), x.rows(),
         x.columns(), n);
}
void CudaBackend::sum(const Tensor& total, const Tensor& x) { add_sums(total, x, false); }
void CudaBackend::sum_squares(const Tensor& totals, const Tensor& x) { add_sums(totals, x, true); }

}  // namespace shoal::cuda
