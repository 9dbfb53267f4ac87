// Matrix products of any shape and alignment, for operands that cuBLASLt does not take.
#include "ops/cuda/device.cuh"
#include "ops/cuda/matmul.h"

namespace shoal::cuda {
namespace {

constexpr int kTile = 16;

struct Strides {
  std::int64_t row, column;
};

// A block computes kTile x kTile elements of c [m, n], a thread one of them.
template <typename In, typename Out>
__global__ void product_kernel(Out* c, const In* a, Strides at_a, const In* b, Strides at_b, const In* bias,
                               std::int64_t m, std::int64_t n, std::int64_t k, bool accumulate) {
  __shared__ float a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTile + y,
                     column = static_cast<std::int64_t>(blockIdx.x) * kTile + x;
  float sum = 0;
  for (std::int64_t begin = 0; begin < k; begin += kTile) {
    a_tile[y][x] = row < m && begin + x < k ? widen(a[row * at_a.row + (begin + x) * at_a.column]) : 0.0f;
    b_tile[y][x] =
        column < n && begin + y < k ? widen(b[(begin + y) * at_b.row + column * at_b.column]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) sum += a_tile[y][i] * b_tile[i][x];
    __syncthreads();
  }
  if (row >= m || column >= n) return;
  if (bias) sum += widen(bias[column]);
  if (accumulate) sum += widen(c[row * n + column]);
  c[row * n + column] = narrow<Out>(sum);
}

template <typename Out, typename In>
__global__ void add_bias_kernel(Out* c, const In* bias, std::int64_t count, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) c[i] = narrow<Out>(widen(c[i]) + widen(bias[i % n]));
}

}  // namespace

void plain_product(const Product& product, cudaStream_t stream) {
  const std::int64_t m = product.c.rows(), n = product.c.columns(),
                     k = product.transpose_a ? product.a.rows() : product.a.columns();
  const Strides at_a = product.transpose_a ? Strides{1, m} : Strides{k, 1},
                at_b = product.transpose_b ? Strides{1, k} : Strides{n, 1};
  with_type(product.a.dtype, [&]<typename In>() {
    with_type(product.c.dtype, [&]<typename Out>() {
      launch(product_kernel<In, Out>, blocks(ceil_div(n, kTile), ceil_div(m, kTile)), kTile * kTile, 0,
             stream, product.c.as<Out>(), product.a.as<In>(), at_a, product.b.as<In>(), at_b,
             product.bias.as<In>(), m, n, k, product.accumulate);
    });
  });
}

void add_bias(const Tensor& c, const Tensor& bias, cudaStream_t stream) {
  constexpr int kThreads = 256;
  with_type(c.dtype, [&]<typename Out>() {
    with_type(bias.dtype, [&]<typename In>() {
      launch(add_bias_kernel<Out, In>, blocks(ceil_div(c.count(), kThreads)), kThreads, 0, stream,
             c.as<Out>(), bias.as<In>(), c.count(), c.columns());
    });
  });
}

}  // namespace shoal::cuda
