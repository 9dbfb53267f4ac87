// Softmax cross-entropy over a chunk of rows: a block of threads has a row.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp;
template <typename T>
constexpr int kWide = 16 / sizeof(T);  // elements that are loaded at once
constexpr std::int32_t kNoClass = 0x7fffffff;

// Of a part of a row: its maximum and where that is first, and the sum of exp(x - maximum).
struct Part {
  float maximum, sum;
  std::int32_t place;
};

__device__ Part empty_part() { return {-INFINITY, 0.0f, kNoClass}; }

// A NaN is no maximum, but its exponential is in the sum. That of minus infinity is nothing.
__device__ void include(Part& part, float x, std::int32_t place) {
  if (x > part.maximum) {
    // The first number of all has nothing to be rescaled; a sum that is NaN stays so.
    part.sum = (part.maximum == -INFINITY ? part.sum : part.sum * expf(part.maximum - x)) + expf(x - x);
    part.maximum = x;
    part.place = place;
  } else if (x != -INFINITY) {
    part.sum += expf(x - part.maximum);
  }
}

__device__ Part merge(const Part& a, const Part& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  const auto rescaled = [&](const Part& part) {
    return part.maximum == maximum ? part.sum : part.sum * expf(part.maximum - maximum);
  };
  std::int32_t place = kNoClass;
  if (a.maximum == maximum) place = a.place;
  if (b.maximum == maximum && b.place < place) place = b.place;
  return {maximum, rescaled(a) + rescaled(b), place};
}

__device__ Part shuffled(const Part& part, int mask) {
  return {shuffle_xor(part.maximum, mask), shuffle_xor(part.sum, mask), shuffle_xor(part.place, mask)};
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    stats_kernel(float* maximum, float* exp_sum, float* target_logit, std::int32_t* argmax, const T* logits,
                 const std::int32_t* targets, std::int64_t columns, std::int64_t first_class,
                 std::int64_t valid) {
  __shared__ Part shared[kWarps];
  const std::int64_t row = blockIdx.x;
  const T* x = logits + row * columns;
  Part part = empty_part();
  const std::int64_t whole = valid / kWidth * kWidth;
#pragma unroll 2
  for (std::int64_t c = threadIdx.x * kWidth; c < whole; c += kThreads * kWidth) {
    const auto values = load<kWidth>(x + c);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) include(part, values.at[i], static_cast<std::int32_t>(c) + i);
  }
  if (whole + threadIdx.x < valid) {
    include(part, widen(x[whole + threadIdx.x]), static_cast<std::int32_t>(whole + threadIdx.x));
  }
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) part = merge(part, shuffled(part, mask));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) part = merge(part, shared[warp]);
  const std::int64_t target = targets[row] - first_class;
  maximum[row] = part.maximum;
  exp_sum[row] = part.sum;
  target_logit[row] = targets[row] >= 0 && target >= 0 && target < valid ? widen(x[target]) : 0.0f;
  argmax[row] = static_cast<std::int32_t>(first_class) + (part.place == kNoClass ? 0 : part.place);
}

template <typename T, typename L, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dlogits, const L* logits, const float* maximum, const float* exp_sum,
                    const std::int32_t* targets, std::int64_t columns, std::int64_t first_class,
                    std::int64_t valid, float scale) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t wanted = targets[row];
  const std::int64_t target = wanted - first_class;
  const float most = maximum[row], factor = scale / exp_sum[row];
  const auto gradient = [&](float x, std::int64_t column) {
    if (wanted < 0 || column >= valid) return 0.0f;
    const float p = factor * expf(x - most);
    return column == target ? p - scale : p;
  };
  // With kWidth > 1 the columns are a multiple of it.
#pragma unroll 2
  for (std::int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
    auto values = load<kWidth>(logits + row * columns + c);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values.at[i] = gradient(values.at[i], c + i);
    store(dlogits + row * columns + c, values);
  }
}

__global__ void rescale_kernel(float* exp_sum, std::int32_t* argmax, const float* own, const float* maximum,
                               std::int64_t rows) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  exp_sum[row] *= expf(own[row] - maximum[row]);
  if (own[row] < maximum[row]) argmax[row] = kNoClass;
}

__global__ void loss_kernel(float* losses, const float* maximum, const float* exp_sum,
                            const float* target_logit, const std::int32_t* targets, std::int64_t rows) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  losses[row] = targets[row] < 0 ? 0.0f : maximum[row] - target_logit[row] + logf(exp_sum[row]);
}

}  // namespace

void CudaBackend::cross_entropy_stats(const Tensor& maximum, const Tensor& exp_sum,
                                      const Tensor& target_logit, const Tensor& argmax, const Tensor& logits,
                                      const Tensor& targets, std::int64_t first_class, std::int64_t valid) {
  const std::int64_t columns = logits.columns();
  with_type(logits.dtype, [&]<typename T>() {
    const bool wide = aligned(logits.data) && columns % kWide<T> == 0;
    launch(wide ? stats_kernel<T, kWide<T>> : stats_kernel<T, 1>, blocks(logits.rows()), kThreads, 0,
           stream_.get(), maximum.as<float>(), exp_sum.as<float>(), target_logit.as<float>(),
           argmax.as<std::int32_t>(), logits.as<T>(), targets.as<std::int32_t>(), columns, first_class,
           valid);
  });
}

void CudaBackend::cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                                        const Tensor& maximum) {
  launch(rescale_kernel, blocks(ceil_div(exp_sum.count(), kThreads)), kThreads, 0, stream_.get(),
         exp_sum.as<float>(), argmax.as<std::int32_t>(), own.as<float>(), maximum.as<float>(),
         exp_sum.count());
}

void CudaBackend::cross_entropy_loss(const Tensor& losses, const Tensor& maximum, const Tensor& exp_sum,
                                     const Tensor& target_logit, const Tensor& targets) {
  launch(loss_kernel, blocks(ceil_div(losses.count(), kThreads)), kThreads, 0, stream_.get(),
         losses.as<float>(), maximum.as<float>(), exp_sum.as<float>(), target_logit.as<float>(),
         targets.as<std::int32_t>(), losses.count());
}

void CudaBackend::cross_entropy_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& maximum,
                                         const Tensor& exp_sum, const Tensor& targets,
                                         std::int64_t first_class, std::int64_t valid, float scale) {
  const std::int64_t columns = logits.columns();
  with_type(dlogits.dtype, [&]<typename T>() {
    with_type(logits.dtype, [&]<typename L>() {
      const bool wide = aligned(logits.data, dlogits.data) && columns % kWide<L> == 0;
      launch(wide ? backward_kernel<T, L, kWide<L>> : backward_kernel<T, L, 1>, blocks(logits.rows()),
             kThreads, 0, stream_.get(), dlogits.as<T>(), logits.as<L>(), maximum.as<float>(),
             exp_sum.as<float>(), targets.as<std::int32_t>(), columns, first_class, valid, scale);
    });
  });
}

}  // namespace shoal::cuda
