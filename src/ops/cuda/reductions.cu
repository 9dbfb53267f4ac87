#include "ops/cuda/reductions.cuh"

#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

// --- sums in double, of equal pieces
constexpr std::int64_t kBlock = 16384;  // elements of one block's sum
constexpr int kWide = 4;

// |x|. A GPU has few units that convert to double: a normal number's bits only move, and its exponent has
// another bias.
__device__ double magnitude(float x) {
  constexpr std::uint32_t kInfinity = 0x7f800000u, kSmallest = 0x00800000u;
  constexpr std::uint32_t kBias = (1023u - 127u) << 20;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
  if (bits - 1 < kSmallest - 1) return fabsf(x);  // it has no leading one
  const std::uint32_t high = bits == 0 ? 0 : (bits >> 3) + (bits >= kInfinity ? 2 * kBias : kBias);
  return std::bit_cast<double>(static_cast<std::uint64_t>(high) << 32 | bits << 29);
}

// part [piece, block] = sum of that block of elements; with one block, total [piece] += it. The order is the
// same for any alignment: a thread has four neighbours at once.
template <bool kSquares, bool kAligned>
__global__ void sum_kernel(double* parts, double* totals, const float* x, std::int64_t length,
                           std::int64_t blocks_of_piece) {
  __shared__ double shared[kWarps];
  const std::int64_t piece = blockIdx.x / blocks_of_piece, block = blockIdx.x % blocks_of_piece;
  const float* from = x + piece * length + block * kBlock;
  const std::int64_t left = length - block * kBlock, n = left < kBlock ? left : kBlock;
  double sum = 0;
  const auto add = [&](float element) {
    if constexpr (kSquares) {
      const double size = magnitude(element);
      sum += size * size;
    } else {
      sum += element;
    }
  };
  std::int64_t i = threadIdx.x * kWide;
#pragma unroll 4
  for (; i + kWide <= n; i += kThreads * kWide) {
    Floats<kWide> values;
    if constexpr (kAligned) {
      values = load<kWide>(from + i);
    } else {
#pragma unroll
      for (int j = 0; j < kWide; ++j) values.at[j] = from[i + j];
    }
#pragma unroll
    for (int j = 0; j < kWide; ++j) add(values.at[j]);
  }
  for (; i < n; ++i) add(from[i]);
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x != 0) return;
  if (blocks_of_piece == 1) {
    totals[piece] += sum;
  } else {
    parts[blockIdx.x] = sum;
  }
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

// A lane sums a column, a warp every kFoldWarps-th part. Blocks of grid.y = 1 fold the second sums.
constexpr int kFoldWarps = 32;
__global__ void __launch_bounds__(kFoldWarps* kWarp)
    fold_parts_kernel(float* out, float* second, const float* parts, std::int64_t blocks_of_rows,
                      std::int64_t stride, std::int64_t columns) {
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
  (blockIdx.y == 0 ? out : second)[column] += total;
}

}  // namespace

void fold_parts(float* out, float* second, const float* parts, std::int64_t blocks_of_rows,
                std::int64_t stride, std::int64_t columns, cudaStream_t stream) {
  launch(fold_parts_kernel, blocks(ceil_div(columns, kWarp), second ? 2 : 1), kFoldWarps * kWarp, 0, stream,
         out, second, parts, blocks_of_rows, stride, columns);
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
  fold_parts(out.as<float>(), nullptr, parts, row_blocks, columns, columns, stream_.get());
}

void CudaBackend::add_sums(const Tensor& totals, const Tensor& x, bool squares) {
  if (x.count() == 0) return;
  const std::int64_t pieces = totals.count(), length = x.count() / pieces,
                     of_piece = ceil_div(length, kBlock);
  auto* parts = scratch_.take<double>(of_piece == 1 ? 1 : pieces * of_piece);
  const bool wide = aligned(x.data) && length % kWide == 0;
  const auto kernel = squares ? (wide ? sum_kernel<true, true> : sum_kernel<true, false>)
                              : (wide ? sum_kernel<false, true> : sum_kernel<false, false>);
  launch(kernel, blocks(pieces * of_piece), kThreads, 0, stream_.get(), parts, totals.as<double>(),
         x.as<float>(), length, of_piece);
  if (of_piece == 1) return;
  launch(fold_sums_kernel, blocks(pieces), kThreads, 0, stream_.get(), totals.as<double>(), parts, of_piece);
}

void CudaBackend::sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) {
  if (n == 0) return;
  launch(sum_rows_kernel, 1, kLanes, 0, stream_.get(), total.as<double>(), x.as<double>(), x.rows(),
         x.columns(), n);
}
void CudaBackend::sum(const Tensor& total, const Tensor& x) { add_sums(total, x, false); }
void CudaBackend::sum_squares(const Tensor& totals, const Tensor& x) { add_sums(totals, x, true); }

}  // namespace shoal::cuda
