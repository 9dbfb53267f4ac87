// Kernels that treat elements one by one.
#pragma once

#include "ops/cuda/device.cuh"

namespace shoal::cuda {

// op.template at<kCount>(i) computes the elements i to i + kCount - 1. An element's arithmetic does not
// depend on kCount.
template <int kWidth, typename Op>
__global__ void elementwise_kernel(std::int64_t n, Op op) {
  std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  if (i + kWidth <= n) {
    op.template at<kWidth>(i);
  } else {
    for (; i < n; ++i) op.template at<1>(i);
  }
}

// kWidth elements per thread if the addresses are aligned to them.
template <int kWidth, typename Op>
void for_elements(std::int64_t n, bool is_aligned, const Op& op, cudaStream_t stream) {
  constexpr int kThreads = 256;
  if (is_aligned) {
    launch(elementwise_kernel<kWidth, Op>, blocks(ceil_div(n, kThreads * kWidth)), kThreads, 0, stream, n,
           op);
  } else {
    launch(elementwise_kernel<1, Op>, blocks(ceil_div(n, kThreads)), kThreads, 0, stream, n, op);
  }
}

}  // namespace shoal::cuda
