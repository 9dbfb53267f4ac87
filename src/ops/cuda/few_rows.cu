// Products with few rows: a warp has some rows of w, of which its lanes read neighbouring pieces.
#include "ops/cuda/few_rows.h"

#include "ops/cuda/gelu.cuh"

namespace shoal::cuda {
namespace {

constexpr int kFewThreads = 128, kFewWarps = kFewThreads / kWarp;

template <typename T>
struct FewRows {
  void* y;
  T* hidden;  // null without GELU
  const T *x, *w, *bias;
  std::int64_t R, K, N;
  bool y_is_float;
  Gelu kind;
};

// y and hidden at a row and column.
template <typename T>
__device__ void store_sum(const FewRows<T>& to, std::int64_t row, std::int64_t column, float sum) {
  if (to.bias) sum += widen(to.bias[column]);
  const std::int64_t at = row * to.N + column;
  if (to.hidden) {
    const T hidden = narrow<T>(sum);
    to.hidden[at] = hidden;
    sum = widen(hidden);
    sum = (to.kind == Gelu::tanh ? gelu_tanh(sum) : gelu_erf(sum)).y;
  }
  if (to.y_is_float) {
    static_cast<float*>(to.y)[at] = sum;
  } else {
    static_cast<T*>(to.y)[at] = narrow<T>(sum);
  }
}

// kRows rows, of which some may be missing, by kColumns of N for kSplit warps, which share each sum; kEach
// neighbouring numbers at once.
template <int kRows, int kColumns, int kSplit, int kEach, typename T>
__global__ void __launch_bounds__(kFewThreads) few_rows_kernel(FewRows<T> of) {
  static_assert(kRows * kColumns <= kWarp && (kSplit == 1 || kSplit == kFewWarps));
  constexpr int kStep = kSplit * kWarp;  // lanes that share a sum
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
            sharer = static_cast<int>(threadIdx.x) % kStep;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kFewThreads + threadIdx.x) / kStep * kColumns;
  if (first >= of.N) return;
  const T *x[kRows], *w[kColumns];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = of.x + (r < of.R ? r : 0) * of.K;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) w[c] = of.w + (first + c < of.N ? first + c : first) * of.K;
  let_next_start();
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    constexpr int kNumbers = kLine / sizeof(T);
    for (std::int64_t k = sharer * kNumbers; k < of.K; k += kStep * kNumbers) prefetch(w[c] + k);
  }
  wait_for_earlier();
  float sums[kRows][kColumns] = {};
#pragma unroll 2
  for (std::int64_t k = sharer * kEach; k < of.K; k += kStep * kEach) {
    Floats<kEach> ws[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) ws[c] = load<kEach>(w[c] + k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto xs = load<kEach>(x[r] + k);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) sums[r][c] = fmaf(xs.at[i], ws[c].at[i], sums[r][c]);
      }
    }
  }
  // A lane keeps the sum of one row and column.
  float mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float sum = warp_sum(sums[r][c]);
      if (lane == r * kColumns + c) mine = sum;
    }
  }
  if constexpr (kSplit > 1) {
    __shared__ float parts[kFewWarps][kWarp];
    parts[warp][lane] = mine;
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int i = 1; i < kFewWarps; ++i) mine += parts[i][lane];
  }
  const int row = lane / kColumns;
  const std::int64_t column = first + lane % kColumns;
  if (row < kRows && row < of.R && column < of.N) store_sum(of, row, column, mine);
}

template <int kRows, int kColumns, int kSplit, int kEach, typename T>
void run(const FewRows<T>& of, cudaStream_t stream) {
  launch_early(few_rows_kernel<kRows, kColumns, kSplit, kEach, T>,
               blocks(ceil_div(of.N, kColumns * (kFewWarps / kSplit))), kFewThreads, stream, of);
}

// A warp has one column, or two, where these are the most that a GPU has warps for; warps share the sums of a
// long row.
template <int kRows, typename T>
void run_rows(const FewRows<T>& of, cudaStream_t stream) {
  constexpr int kEach = 16 / sizeof(T), kFewer = kRows > 1 ? 2 : 1;
  constexpr std::int64_t kMany = 8192, kLong = 2048;
  if (of.N > kMany) return run<kRows, 4, 1, kEach>(of, stream);
  if (of.K > kLong) return run<kRows, kFewer, kFewWarps, kEach>(of, stream);
  run<kRows, kFewer, 1, kEach>(of, stream);
}

template <typename T>
void run_any(const FewRows<T>& of, cudaStream_t stream) {
  constexpr std::int64_t kEach = 16 / sizeof(T);
  if (of.K % kEach != 0 || !aligned(of.x, of.w)) return run<kFewRows, 1, 1, 1>(of, stream);
  if (of.R == 1) return run_rows<1>(of, stream);
  if (of.R <= 4) return run_rows<4>(of, stream);
  run_rows<kFewRows>(of, stream);
}

}  // namespace

void few_rows_gelu(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                   const Tensor& bias, Gelu kind, cudaStream_t stream) {
  with_type(w.dtype, [&]<typename T>() {
    run_any(FewRows<T>{y.data, hidden.as<T>(), x.as<T>(), w.as<T>(), bias.as<T>(), x.rows(), x.columns(),
                       w.rows(), y.dtype == DType::f32, kind},
            stream);
  });
}

void few_rows_product(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias,
                      cudaStream_t stream) {
  few_rows_gelu(y, {}, x, w, bias, {}, stream);
}

}  // namespace shoal::cuda
