// Residual stream and embedding: row by row, with or without dropout.
#include <algorithm>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHalf = 16;      // lanes of one block of a mask's columns
constexpr int kColumns = 128;  // of a block of the mask
constexpr int kEach = 8;       // of a lane: its own, and every 16th from there

// --- one block of threads per row; op.template at<kWidth>(row, column, factors)
template <int kWidth, typename Op>
__global__ void row_kernel(std::int64_t positions, std::int64_t columns, Mask mask, Op op) {
  const std::int64_t row = blockIdx.x;
  if (!mask.active) {
    Floats<kWidth> ones;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) ones.at[i] = 1;
    for (std::int64_t c = threadIdx.x * kWidth; c < columns; c += blockDim.x * kWidth) {
      op.at(row, c, ones);
    }
    return;
  }
  const std::uint32_t global_row = mask.row(row / positions, row % positions);
  if constexpr (kWidth == 4) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
    const std::int64_t begin = mask.first_column / (2 * kColumns), end = mask.first_column + columns;
    for (std::int64_t pair = begin + threadIdx.x / kWarp; pair * 2 * kColumns < end; pair += warps) {
      const std::uint32_t kept = kept_columns(mask, global_row, static_cast<std::uint32_t>(pair));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t c = (pair * 2 + i) * kColumns + lane * kWidth - mask.first_column;
        if (c >= 0 && c < columns) op.at(row, c, kept_factors(mask, kept >> (kWidth * i)));
      }
    }
  } else {
    const int lane = static_cast<int>(threadIdx.x) % kHalf, halves = static_cast<int>(blockDim.x) / kHalf;
    const std::int64_t begin = mask.first_column / kColumns, end = mask.first_column + columns;
    for (std::int64_t block = begin + threadIdx.x / kHalf; block * kColumns < end; block += halves) {
      const Factors factors = dropout_factors(mask, mask.site, global_row, static_cast<std::uint32_t>(block),
                                              static_cast<std::uint32_t>(lane));
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t c = block * kColumns + lane + i * kHalf - mask.first_column;
        if (c >= 0 && c < columns) op.at(row, c, Floats<1>{{factors.at[i]}});
      }
    }
  }
}

template <typename Op>
void for_rows(std::int64_t rows, std::int64_t positions, std::int64_t columns, const Dropout& dropout,
              bool is_aligned, const Op& op, cudaStream_t stream) {
  constexpr int kWidth = 4;
  const Mask mask(dropout);
  const bool wide = is_aligned && columns % kWidth == 0;
  // The threads that a row needs, in whole warps.
  const std::int64_t work = mask.active ? ceil_div(columns, kColumns) * kHalf : columns / (wide ? kWidth : 1);
  const auto threads = static_cast<unsigned>(
      std::min<std::int64_t>(kThreads, ceil_div(std::max<std::int64_t>(work, 1), kWarp) * kWarp));
  launch(wide ? row_kernel<kWidth, Op> : row_kernel<1, Op>, blocks(rows), threads, 0, stream, positions,
         columns, mask, op);
}

template <typename T>
struct AddBranch {
  float* out;
  const float* residual;
  const T* branch;
  std::int64_t columns;
  template <int kCount>
  __device__ void at(std::int64_t row, std::int64_t column, const Floats<kCount>& factors) const {
    const std::int64_t i = row * columns + column;
    auto sum = load<kCount>(residual + i);
    const auto term = load<kCount>(branch + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum.at[j] = fmaf(factors.at[j], term.at[j], sum.at[j]);
    store(out + i, sum);
  }
};

template <typename T>
struct MaskGradient {
  T* dbranch;
  const float* dout;
  std::int64_t columns;
  template <int kCount>
  __device__ void at(std::int64_t row, std::int64_t column, const Floats<kCount>& factors) const {
    const std::int64_t i = row * columns + column;
    auto value = load<kCount>(dout + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) value.at[j] *= factors.at[j];
    store(dbranch + i, value);
  }
};

template <typename T>
struct Embed {
  float* out;
  const std::int32_t* tokens;
  const T* wte;
  const T* wpe;  // from the window's first position on
  std::int64_t first_class, classes, positions, columns;
  template <int kCount>
  __device__ void at(std::int64_t row, std::int64_t column, const Floats<kCount>& factors) const {
    const std::int64_t token = tokens[row] - first_class;
    Floats<kCount> value{};
    if (token >= 0 && token < classes) {
      value = load<kCount>(wte + token * columns + column);
      const auto place = load<kCount>(wpe + row % positions * columns + column);
#pragma unroll
      for (int j = 0; j < kCount; ++j) value.at[j] = (place.at[j] + value.at[j]) * factors.at[j];
    }
    store(out + row * columns + column, value);
  }
};

// --- the embedding's gradient, summed in the order of the tokens whichever block runs first: rows are sorted
// by class, keeping their order, and each class adds up its own rows.

constexpr int kRankThreads = 256;

__device__ std::int64_t class_of(const std::int32_t* tokens, std::int64_t row, std::int64_t first_class,
                                 std::int64_t classes) {
  const std::int64_t token = tokens[row] - first_class;
  return token >= 0 && token < classes ? token : -1;
}

// ranks [row]: how many earlier rows have its token. counts [class] += rows of it.
__global__ void rank_kernel(int* ranks, int* counts, const std::int32_t* tokens, std::int64_t rows,
                            std::int64_t first_class, std::int64_t classes) {
  __shared__ std::int32_t earlier[kRankThreads];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kRankThreads, row = begin + threadIdx.x;
  const std::int32_t mine = row < rows ? tokens[row] : 0;
  int rank = 0;
  for (std::int64_t from = 0; from <= begin; from += kRankThreads) {
    __syncthreads();
    if (from + threadIdx.x < rows) earlier[threadIdx.x] = tokens[from + threadIdx.x];
    __syncthreads();
    const int n = from < begin ? kRankThreads : static_cast<int>(threadIdx.x);
#pragma unroll 16
    for (int i = 0; i < n; ++i) rank += earlier[i] == mine;
  }
  if (row >= rows) return;
  ranks[row] = rank;
  const std::int64_t mine_class = class_of(tokens, row, first_class, classes);
  if (mine_class >= 0) add_atomically(&counts[mine_class], 1);
}

// starts [class] = sum of the counts before; present: classes with a count, in order, and how many they are.
// One block.
constexpr int kScanThreads = 1024;
__global__ void scan_kernel(int* starts, int* present, int* present_count, const int* counts,
                            std::int64_t classes) {
  __shared__ int rows_before[2][kScanThreads], classes_before[2][kScanThreads];
  const auto thread = static_cast<std::int64_t>(threadIdx.x),
             each = (classes + kScanThreads - 1) / kScanThreads, begin = thread * each,
             end = begin + each < classes ? begin + each : classes;
  int rows = 0, here = 0;
  for (std::int64_t c = begin; c < end; ++c) {
    rows += counts[c];
    here += counts[c] > 0;
  }
  // Sums of all threads up to this one, doubling the reach; then without its own.
  int side = 0;
  rows_before[0][thread] = rows;
  classes_before[0][thread] = here;
  for (int reach = 1; reach < kScanThreads; reach *= 2, side = 1 - side) {
    __syncthreads();
    const bool more = thread >= reach;
    rows_before[1 - side][thread] =
        rows_before[side][thread] + (more ? rows_before[side][thread - reach] : 0);
    classes_before[1 - side][thread] =
        classes_before[side][thread] + (more ? classes_before[side][thread - reach] : 0);
  }
  int at = rows_before[side][thread] - rows, place = classes_before[side][thread] - here;
  if (thread == kScanThreads - 1) *present_count = place + here;
  for (std::int64_t c = begin; c < end; ++c) {
    starts[c] = at;
    at += counts[c];
    if (counts[c] > 0) present[place++] = static_cast<int>(c);
  }
}

__global__ void sort_kernel(int* sorted, const int* starts, const int* ranks, const std::int32_t* tokens,
                            std::int64_t rows, std::int64_t first_class, std::int64_t classes) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const std::int64_t mine = class_of(tokens, row, first_class, classes);
  if (mine >= 0) sorted[starts[mine] + ranks[row]] = static_cast<int>(row);
}

// Adds one row of dout to the sums of a lane's columns.
__device__ void add_row(float (&sums)[kEach], const float* dout, std::int64_t row, std::int64_t block,
                        int lane, std::int64_t positions, std::int64_t columns, const Mask& mask) {
  Factors factors;
  if (mask.active) {
    factors = dropout_factors(mask, mask.site, mask.row(row / positions, row % positions),
                              static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(lane));
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t column = block * kColumns + lane + i * kHalf;
    if (column >= columns) break;
    const float value = dout[row * columns + column];
    sums[i] += mask.active ? value * factors.at[i] : value;
  }
}

// A block of threads sums 128 columns of one class after the other; each half warp takes every 16th row of a
// class.
__global__ void __launch_bounds__(kThreads)
    classes_kernel(float* dwte, const float* dout, const int* sorted, const int* starts, const int* counts,
                   const int* present, const int* present_count, std::int64_t positions, std::int64_t columns,
                   Mask mask) {
  constexpr int kHalves = kThreads / kHalf;
  __shared__ float shared[kHalves][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kHalf, half = static_cast<int>(threadIdx.x) / kHalf;
  const std::int64_t block = blockIdx.y;
  const int classes = *present_count;
  for (int k = static_cast<int>(blockIdx.x); k < classes; k += static_cast<int>(gridDim.x)) {
    const int mine = present[k], count = counts[mine];
    const int* rows = sorted + starts[mine];
    float sums[kEach] = {};
#pragma unroll 2
    for (int i = half; i < count; i += kHalves) {
      add_row(sums, dout, rows[i], block, lane, positions, columns, mask);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) shared[half][lane + i * kHalf] = sums[i];
    __syncthreads();
    const auto thread = static_cast<std::int64_t>(threadIdx.x), column = block * kColumns + thread;
    if (thread >= kColumns || column >= columns) continue;
    const int terms = count < kHalves ? count : kHalves;
    float total = 0;
    for (int i = 0; i < terms; ++i) total += shared[i][thread];
    dwte[mine * columns + column] += total;
  }
}

// A half warp sums 128 columns of a position.
__global__ void positions_kernel(float* dwpe, const float* dout, std::int64_t samples, std::int64_t positions,
                                 std::int64_t columns, Mask mask) {
  const std::int64_t t = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kHalf;
  for (std::int64_t block = threadIdx.x / kHalf; block * kColumns < columns; block += blockDim.x / kHalf) {
    float sums[kEach] = {};
#pragma unroll 2
    for (std::int64_t b = 0; b < samples; ++b) {
      add_row(sums, dout, b * positions + t, block, lane, positions, columns, mask);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t column = block * kColumns + lane + i * kHalf;
      if (column < columns) dwpe[t * columns + column] += sums[i];
    }
  }
}

}  // namespace

void CudaBackend::residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                                   const Dropout& dropout) {
  with_type(branch.dtype, [&]<typename T>() {
    for_rows(out.rows(), out.dim(1), out.columns(), dropout, aligned(out.data, residual.data, branch.data),
             AddBranch<T>{out.as<float>(), residual.as<float>(), branch.as<T>(), out.columns()},
             stream_.get());
  });
}

void CudaBackend::residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) {
  if (!dropout.active()) return convert(dbranch, dout);
  with_type(dbranch.dtype, [&]<typename T>() {
    for_rows(dout.rows(), dout.dim(1), dout.columns(), dropout, aligned(dbranch.data, dout.data),
             MaskGradient<T>{dbranch.as<T>(), dout.as<float>(), dout.columns()}, stream_.get());
  });
}

void CudaBackend::embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte,
                                    const Tensor& wpe, std::int64_t first_class, const Dropout& dropout) {
  const std::int64_t columns = out.columns(), positions = tokens.dim(1);
  with_type(wte.dtype, [&]<typename T>() {
    for_rows(tokens.count(), positions, columns, dropout, aligned(out.data, wte.data, wpe.data),
             Embed<T>{out.as<float>(), tokens.as<std::int32_t>(), wte.as<T>(),
                      wpe.as<T>() + dropout.window.first_position * columns, first_class, wte.rows(),
                      positions, columns},
             stream_.get());
  });
}

void CudaBackend::embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                                     const Tensor& tokens, std::int64_t first_class, const Dropout& dropout) {
  const std::int64_t rows = tokens.count(), positions = tokens.dim(1), columns = dout.columns(),
                     classes = dwte.rows(), column_blocks = ceil_div(columns, kColumns);
  int* ranks = scratch_.take<int>(2 * rows + 3 * classes + 1);
  int *sorted = ranks + rows, *counts = sorted + rows, *starts = counts + classes,
      *present = starts + classes, *present_count = present + classes;
  const auto* ids = tokens.as<std::int32_t>();
  const Mask mask(dropout);
  cudaStream_t stream = stream_.get();
  check(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(classes) * sizeof(int), stream));
  launch(rank_kernel, blocks(ceil_div(rows, kRankThreads)), kRankThreads, 0, stream, ranks, counts, ids, rows,
         first_class, classes);
  launch(scan_kernel, 1, kScanThreads, 0, stream, starts, present, present_count, counts, classes);
  launch(sort_kernel, blocks(ceil_div(rows, kThreads)), kThreads, 0, stream, sorted, starts, ranks, ids, rows,
         first_class, classes);
  constexpr std::int64_t kBlocks = 2048;  // several for every multiprocessor
  launch(classes_kernel, blocks(std::min(kBlocks, std::min(rows, classes)), column_blocks), kThreads, 0,
         stream, dwte.as<float>(), dout.as<float>(), sorted, starts, counts, present, present_count,
         positions, columns, mask);
  const auto threads =
      static_cast<unsigned>(std::min<std::int64_t>(kThreads, ceil_div(column_blocks, 2) * kWarp));
  launch(positions_kernel, blocks(positions), threads, 0, stream,
         dwpe.as<float>() + dropout.window.first_position * columns, dout.as<float>(), rows / positions,
         positions, columns, mask);
}

}  // namespace shoal::cuda
