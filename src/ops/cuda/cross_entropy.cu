// Softmax cross-entropy over a chunk of rows: one block of threads per row.
#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {
namespace {

// Threads of a block, for rows of many columns and of few.
constexpr int kMany = 1024, kFew = 128;
constexpr std::int64_t kManyColumns = 4096;
constexpr int kResident = 2048;  // threads per multiprocessor, if their registers suffice
template <typename T>
constexpr int kWide = 16 / sizeof(T);  // elements of one load
constexpr std::int32_t kNoClass = 0x7fffffff;

__device__ float exponential(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return fast_exp2(x * kLog2E);
}

// Statistics of a part of a row: its maximum, the first index of it, and the sum of exp(x - maximum).
struct Part {
  float maximum, sum;
  std::int32_t place;
};

// Bytes of a row that is kept between its two passes: the shared memory of a block on every GPU from sm_80 on
// (sm_86 has the least), minus that of the warps' parts. GPT-2's classes in bfloat16 just fit.
constexpr std::size_t kMostKept = (99 << 10) - kMany / kWarp * sizeof(Part);

__device__ Part empty_part() { return {-INFINITY, 0.0f, kNoClass}; }

// A NaN is never the maximum, but its exponential is in the sum. The exponential of minus infinity is zero.
template <int kWidth>
__device__ void include(Part& part, const Floats<kWidth>& x, std::int32_t place) {
  float most = x.at[0];
#pragma unroll
  for (int i = 1; i < kWidth; ++i) most = fmaxf(most, x.at[i]);
  if (most > part.maximum) {
    // Nothing to rescale before the first number; a sum that is NaN stays NaN.
    if (part.maximum != -INFINITY) part.sum *= exponential(part.maximum - most);
    part.maximum = most;
#pragma unroll
    for (int i = kWidth - 1; i >= 0; --i) {
      if (x.at[i] == most) part.place = place + i;
    }
  }
  const bool nothing = part.maximum == -INFINITY;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (!nothing || x.at[i] != -INFINITY) part.sum += exponential(x.at[i] - part.maximum);
  }
}

__device__ Part merge(const Part& a, const Part& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  const auto rescaled = [&](const Part& part) {
    return part.maximum == maximum ? part.sum : part.sum * exponential(part.maximum - maximum);
  };
  std::int32_t place = kNoClass;
  if (a.maximum == maximum) place = a.place;
  if (b.maximum == maximum && b.place < place) place = b.place;
  return {maximum, rescaled(a) + rescaled(b), place};
}

// Combines all lanes; returned to all.
__device__ Part merge_lanes(Part part) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    part = merge(
        part, {shuffle_xor(part.maximum, mask), shuffle_xor(part.sum, mask), shuffle_xor(part.place, mask)});
  }
  return part;
}

struct Statistics {
  float *maximum, *exp_sum, *target_logit;
  std::int32_t* argmax;
};

// The statistics of a row x whose first `valid` columns count. The first thread stores them, before a
// barrier; all threads get the maximum and the sum. Loaded elements are also written to `kept`, unless it is
// null.
template <int kThreads, int kWidth, typename T>
__device__ Part row_statistics(const Statistics& to, std::int64_t row, const T* x, T* kept,
                               std::int64_t target, std::int64_t first_class, std::int64_t valid) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ Part shared[kWarps];
  Part part = empty_part();
#pragma unroll 2
  for (std::int64_t c = threadIdx.x * kWidth; c < valid; c += kThreads * kWidth) {
    auto values = load<kWidth>(x + c);
    if (kept) store(kept + c, values);
    if (c + kWidth > valid) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (c + i >= valid) values.at[i] = -INFINITY;
      }
    }
    include(part, values, static_cast<std::int32_t>(c));
  }
  part = merge_lanes(part);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = part;
  __syncthreads();
  part = merge_lanes(lane < kWarps ? shared[lane] : empty_part());
  if (threadIdx.x == 0) {
    to.maximum[row] = part.maximum;
    to.exp_sum[row] = part.sum;
    to.target_logit[row] = target >= 0 && target < valid ? widen(x[target]) : 0.0f;
    to.argmax[row] = static_cast<std::int32_t>(first_class) + (part.place == kNoClass ? 0 : part.place);
  }
  __syncthreads();
  return part;
}

__device__ float row_loss(float maximum, float exp_sum, float target_logit) {
  return maximum - target_logit + logf(exp_sum);
}

// x may be the memory of `out`. A row that does not count has no gradient, whatever its logits are.
template <int kThreads, int kWidth, typename T, typename L>
__device__ void row_gradient(T* out, const L* x, float maximum, float exp_sum, bool counts,
                             std::int64_t target, std::int64_t columns, std::int64_t valid, float scale) {
  const float factor = scale / exp_sum;
  // With kWidth > 1 the columns are a multiple of it.
#pragma unroll 2
  for (std::int64_t c = threadIdx.x * kWidth; c < columns; c += kThreads * kWidth) {
    Floats<kWidth> values = {};
    if (counts && c < valid) {
      values = load<kWidth>(x + c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        values.at[i] = product(factor, exponential(values.at[i] - maximum));
        if (c + i == target) values.at[i] -= scale;
        if (c + i >= valid) values.at[i] = 0.0f;
      }
    }
    store(out + c, values);
  }
}

template <int kThreads, int kWidth, typename L>
__global__ void __launch_bounds__(kThreads)
    stats_kernel(Statistics to, const L* logits, const std::int32_t* targets, std::int64_t columns,
                 std::int64_t first_class, std::int64_t valid) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t target = targets[row] < 0 ? -1 : targets[row] - first_class;
  row_statistics<kThreads, kWidth, L>(to, row, logits + row * columns, nullptr, target, first_class, valid);
}

template <int kThreads, int kWidth, typename T, typename L>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(T* dlogits, const L* logits, const float* maximum, const float* exp_sum,
                    const std::int32_t* targets, std::int64_t columns, std::int64_t first_class,
                    std::int64_t valid, float scale) {
  const std::int64_t row = blockIdx.x;
  row_gradient<kThreads, kWidth>(dlogits + row * columns, logits + row * columns, maximum[row], exp_sum[row],
                                 targets[row] >= 0, targets[row] - first_class, columns, valid, scale);
}

// Statistics, loss and gradient, with the row kept in shared memory: logits are read from global memory once.
template <int kThreads, typename T>
__global__ void __launch_bounds__(kThreads, kResident / kThreads)
    train_kernel(T* dlogits, float* losses, Statistics to, const T* logits, const std::int32_t* targets,
                 std::int64_t columns, std::int64_t valid, float scale) {
  T* kept = dynamic_shared<T>();
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = targets[row];
  const Part part =
      row_statistics<kThreads, kWide<T>>(to, row, logits + row * columns, kept, target, 0, valid);
  if (threadIdx.x == 0) {
    losses[row] = target < 0 ? 0.0f : row_loss(part.maximum, part.sum, to.target_logit[row]);
  }
  row_gradient<kThreads, kWide<T>>(dlogits + row * columns, kept, part.maximum, part.sum, target >= 0, target,
                                   columns, valid, scale);
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
  losses[row] = targets[row] < 0 ? 0.0f : row_loss(maximum[row], exp_sum[row], target_logit[row]);
}

// f<threads of a block>() for rows of so many columns.
template <typename F>
void with_threads(std::int64_t columns, const F& f) {
  if (columns > kManyColumns) {
    f.template operator()<kMany>();
  } else {
    f.template operator()<kFew>();
  }
}

}  // namespace

void CudaBackend::cross_entropy_stats(const CrossEntropy& args) {
  const std::int64_t columns = args.logits.columns();
  const Statistics to{args.maximum.as<float>(), args.exp_sum.as<float>(), args.target_logit.as<float>(),
                      args.argmax.as<std::int32_t>()};
  with_type(args.logits.dtype, [&]<typename L>() {
    with_threads(columns, [&]<int kThreads>() {
      const bool wide = aligned(args.logits.data) && columns % kWide<L> == 0;
      launch(wide ? stats_kernel<kThreads, kWide<L>, L> : stats_kernel<kThreads, 1, L>,
             blocks(args.logits.rows()), kThreads, 0, stream_.get(), to, args.logits.as<L>(),
             args.targets.as<std::int32_t>(), columns, args.first_class, args.valid);
    });
  });
}

void CudaBackend::cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                                        const Tensor& maximum) {
  launch(rescale_kernel, blocks(ceil_div(exp_sum.count(), kFew)), kFew, 0, stream_.get(), exp_sum.as<float>(),
         argmax.as<std::int32_t>(), own.as<float>(), maximum.as<float>(), exp_sum.count());
}

void CudaBackend::cross_entropy_loss(const CrossEntropy& args) {
  launch(loss_kernel, blocks(ceil_div(args.losses.count(), kFew)), kFew, 0, stream_.get(),
         args.losses.as<float>(), args.maximum.as<float>(), args.exp_sum.as<float>(),
         args.target_logit.as<float>(), args.targets.as<std::int32_t>(), args.losses.count());
}

void CudaBackend::cross_entropy_backward(const CrossEntropy& args) {
  const std::int64_t columns = args.logits.columns();
  with_type(args.dlogits.dtype, [&]<typename T>() {
    with_type(args.logits.dtype, [&]<typename L>() {
      with_threads(columns, [&]<int kThreads>() {
        const bool wide = aligned(args.logits.data, args.dlogits.data) && columns % kWide<L> == 0;
        launch(wide ? backward_kernel<kThreads, kWide<L>, T, L> : backward_kernel<kThreads, 1, T, L>,
               blocks(args.logits.rows()), kThreads, 0, stream_.get(), args.dlogits.as<T>(),
               args.logits.as<L>(), args.maximum.as<float>(), args.exp_sum.as<float>(),
               args.targets.as<std::int32_t>(), columns, args.first_class, args.valid, args.scale);
      });
    });
  });
}

void CudaBackend::cross_entropy_train(const CrossEntropy& args) {
  const std::int64_t columns = args.logits.columns();
  const std::size_t row = static_cast<std::size_t>(columns) * size_of(args.logits.dtype);
  if (args.dlogits.dtype != args.logits.dtype || row > kMostKept || row % 16 != 0 ||
      !aligned(args.logits.data, args.dlogits.data)) {
    return Backend::cross_entropy_train(args);
  }
  const Statistics to{args.maximum.as<float>(), args.exp_sum.as<float>(), args.target_logit.as<float>(),
                      args.argmax.as<std::int32_t>()};
  with_type(args.logits.dtype, [&]<typename T>() {
    with_threads(columns, [&]<int kThreads>() {
      launch(train_kernel<kThreads, T>, blocks(args.logits.rows()), kThreads, row, stream_.get(),
             args.dlogits.as<T>(), args.losses.as<float>(), to, args.logits.as<T>(),
             args.targets.as<std::int32_t>(), columns, args.valid, args.scale);
    });
  });
}

}  // namespace shoal::cuda
