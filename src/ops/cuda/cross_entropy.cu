// Softmax cross-entropy over a chunk of rows. A block of threads computes whole rows, in passes: the maximum,
// the sum of exponentials, the gradient. A thread has the same elements of a row in every pass.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/device.cuh"

namespace shoal::cuda {
namespace {

// Threads of a block, for rows of many columns and of few.
constexpr int kMany = 512, kFew = 128;
constexpr std::int64_t kManyColumns = 4096, kFewColumns = 512;  // below the latter a warp is enough
constexpr int kResident = 1024;  // threads per multiprocessor, if shared memory suffices
template <typename T>
constexpr int kWide = 16 / sizeof(T);  // elements of one load
constexpr std::int32_t kNoClass = 0x7fffffff;

// Bytes of a row that is kept between its passes: the shared memory of a block on every GPU from sm_80 on
// (sm_86 has the least), minus that of the warps' results. GPT-2's classes in bfloat16 just fit.
constexpr std::size_t kMostKept = (99 << 10) - 256;

// exp(x - maximum) = correction * (*this)(x), which costs a multiply-add and a power of two for each element.
// The rounding error of the shift is the same for all elements; the correction removes it.
struct Exponential {
  float slope, shift, correction = 1;

  __device__ explicit Exponential(float maximum) {
    // Near 2^32 the power of this error would overflow. From 2^30 on, other numbers are at least 64 below the
    // maximum, so their exponentials are lost in the sum, and powers of two serve as well.
    // The exponential of minus infinity is zero, even if that is the maximum.
    if (fabsf(maximum) < 0x1p30f) {
      slope = 1.4426950408889634f;  // log2(e)
      shift = -product(maximum, slope);
      correction = fast_exp2(-fmaf(maximum, slope, shift));
    } else {
      slope = 1;
      shift = maximum == -INFINITY ? 0.0f : -maximum;
    }
  }
  __device__ float operator()(float x) const { return fast_exp2(fmaf(x, slope, shift)); }
};

// Vectors of a row as they are loaded: 16 bytes, or one element of a row that is not aligned.
template <typename T, int kWidth>
using Vector = std::conditional_t<kWidth == 1, T, uint4>;

template <typename T>
__device__ Floats<1> widened(T x) {
  return {widen(x)};
}
template <typename T>
__device__ Floats<kWide<T>> widened(const uint4& x) {
  const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
  Floats<kWide<T>> values;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) {
      values.at[2 * i] = widen_low(words[i]);
      values.at[2 * i + 1] = widen_high(words[i]);
    } else {
      values.at[i] = std::bit_cast<float>(words[i]);
    }
  }
  return values;
}
template <typename T, int kWidth>
__device__ const Floats<kWidth>& widened(const Floats<kWidth>& x) {
  return x;
}

template <typename T, int kWidth>
__device__ void store_vector(T* to, const Floats<kWidth>& x) {
  if constexpr (sizeof(T) == 2 && kWidth == 8) {
    const uint4 vector{pack_bfloat16(x.at[0], x.at[1]), pack_bfloat16(x.at[2], x.at[3]),
                       pack_bfloat16(x.at[4], x.at[5]), pack_bfloat16(x.at[6], x.at[7])};
    store_whole(to, vector);
  } else {
    store(to, x);
  }
}

// The largest of a thread's elements; a NaN never is. Pairs of bfloat16 are compared as they are stored.
template <typename T>
struct Largest {
  std::uint32_t pair = 0xff80ff80;  // both minus infinity
  float single = -INFINITY;

  __device__ void include(const uint4& x) {
    if constexpr (sizeof(T) == 2) {
      pair = larger_bfloat16(larger_bfloat16(pair, larger_bfloat16(x.x, x.y)), larger_bfloat16(x.z, x.w));
    } else {
      include(widened<T>(x));
    }
  }
  __device__ void include(T x) { single = fmaxf(single, widen(x)); }
  template <int kWidth>
  __device__ void include(const Floats<kWidth>& x) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) single = fmaxf(single, x.at[i]);
  }
  __device__ float value() const { return fmaxf(single, fmaxf(widen_low(pair), widen_high(pair))); }
};

// f(i, vector, count) for each of this thread's vectors i of a row whose first `valid` elements count. Where
// only the first `count` elements of a vector do, it comes as float32, and the others are minus infinity.
// Several vectors are loaded before f is called with them: f may store, and loads are not moved across that.
template <int kThreads, int kWidth, typename T, typename F>
__device__ void for_each_vector(const T* x, int valid, const F& f) {
  constexpr int kAtOnce = 4;
  const auto* vectors = reinterpret_cast<const Vector<T, kWidth>*>(x);
  const int whole = valid / kWidth, rest = valid % kWidth;
  int i = static_cast<int>(threadIdx.x);
#pragma unroll 1
  for (; i + (kAtOnce - 1) * kThreads < whole; i += kAtOnce * kThreads) {
    Vector<T, kWidth> loaded[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) loaded[j] = vectors[i + j * kThreads];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) f(i + j * kThreads, loaded[j], kWidth);
  }
#pragma unroll 1
  for (; i < whole; i += kThreads) {
    const Vector<T, kWidth> vector = vectors[i];
    f(i, vector, kWidth);
  }
  if constexpr (kWidth > 1) {
    if (rest == 0 || whole % kThreads != static_cast<int>(threadIdx.x)) return;
    auto last = widened<T>(vectors[whole]);
#pragma unroll
    for (int j = 1; j < kWidth; ++j) {
      if (j >= rest) last.at[j] = -INFINITY;
    }
    f(whole, last, rest);
  }
}

// The index of this thread's first element that is `wanted`.
template <int kThreads, int kWidth, typename T>
__device__ std::int32_t first_place(const T* x, int valid, float wanted) {
  std::int32_t place = kNoClass;
#pragma unroll 1
  for (int c = static_cast<int>(threadIdx.x) * kWidth; c < valid && place == kNoClass;
       c += kThreads * kWidth) {
    const auto values = widened<T>(*reinterpret_cast<const Vector<T, kWidth>*>(x + c));
#pragma unroll
    for (int j = kWidth - 1; j >= 0; --j) {
      if (values.at[j] == wanted && c + j < valid) place = c + j;
    }
  }
  return place;
}

struct Statistics {
  float *maximum, *exp_sum, *target_logit;
  std::int32_t* argmax;
};

struct RowStatistics {
  float maximum, exp_sum;
  std::int32_t argmax;  // kNoClass without a number above minus infinity; the first thread's alone
};

// after_last() is called when a vector has been read for the last time. Another call may follow without a
// barrier: each array is read before one of the two barriers here and written after it.
template <int kThreads, int kWidth, typename T, typename F>
__device__ RowStatistics row_statistics(const T* x, int valid, const F& after_last) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ std::int32_t places[kWarps];
  static_assert(sizeof maxima + sizeof sums + sizeof places <= 256);  // see kMostKept
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;

  Largest<T> largest;
  for_each_vector<kThreads, kWidth>(x, valid, [&](int, const auto& vector, int) { largest.include(vector); });
  const float mine = largest.value();
  const float of_warp = warp_max(mine);
  if (lane == 0) maxima[warp] = of_warp;
  __syncthreads();
  const float maximum = warp_max(maxima[lane % kWarps]);

  // Few threads have the maximum. They search for it, which costs less than to note places above.
  std::int32_t place = kNoClass;
  if (mine == maximum && maximum != -INFINITY) place = first_place<kThreads, kWidth>(x, valid, maximum);
  place = warp_min(place);
  if (lane == 0) places[warp] = place;

  const Exponential exponential(maximum);
  float sum[2] = {};
  for_each_vector<kThreads, kWidth>(x, valid, [&](int, const auto& vector, int) {
    const auto values = widened<T>(vector);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j % 2] += exponential(values.at[j]);
    after_last();
  });
  const float exp_sum = product(exponential.correction, block_sum<kThreads>(sum[0] + sum[1], sums));
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 1; i < kWarps; ++i) {
      if (places[i] < place) place = places[i];
    }
  }
  return {maximum, exp_sum, place};
}

__device__ float row_loss(float maximum, float exp_sum, float target_logit) {
  return maximum - target_logit + logf(exp_sum);
}

// x may be the memory of `out`. A row that does not count has no gradient, whatever its logits are; then
// after_last() is not called.
template <int kThreads, int kWidth, typename T, typename L, typename F>
__device__ void row_gradient(T* out, const L* x, float maximum, float exp_sum, bool counts,
                             std::int64_t target, std::int64_t columns, int valid, float scale,
                             const F& after_last) {
  // With kWidth > 1 the columns are a multiple of it.
  int vectors = 0;
  if (counts) {
    vectors = (valid + kWidth - 1) / kWidth;
    const Exponential exponential(maximum);
    const float factor = product(exponential.correction, scale / exp_sum);
    const auto probability = [&](float logit) { return product(factor, exponential(logit)); };
    // The target's gradient replaces what the thread of its vector has stored.
    const bool mine = target >= 0 && target < valid && target / kWidth % kThreads == threadIdx.x;
    const float of_target = mine ? probability(widen(x[target])) - scale : 0.0f;
    for_each_vector<kThreads, kWidth>(x, valid, [&](int i, const auto& vector, int count) {
      auto values = widened<L>(vector);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values.at[j] = j < count ? probability(values.at[j]) : 0.0f;
      store_vector(out + i * kWidth, values);
      after_last();
    });
    if (mine) out[target] = narrow<T>(of_target);
  }
  const int all = static_cast<int>(columns / kWidth);
  for (int i = vectors + static_cast<int>(threadIdx.x); i < all; i += kThreads) {
    store_vector(out + i * kWidth, Floats<kWidth>{});
  }
}

// Copies this thread's vectors of a row to shared memory, one after the other. It alone reads them, so no
// barrier is needed.
template <int kThreads, typename T>
struct Copier {
  SharedAddress to;
  const T* from;
  bool there;  // whether there is a row

  __device__ Copier(const T* kept, const T* row, bool exists)
      : to(shared_address(kept) + 16 * threadIdx.x), from(row + kWide<T> * threadIdx.x), there(exists) {}
  __device__ void copy_next() {
    if (there) copy_async(to, from, true);
    to += 16 * kThreads;
    from += kWide<T> * kThreads;
  }
  __device__ void copy_all(int valid) {
    for (int c = static_cast<int>(threadIdx.x) * kWide<T>; c < valid; c += kThreads * kWide<T>) copy_next();
  }
};

template <typename T>
struct Rows {
  const T* logits;
  const std::int32_t* targets;
  std::int64_t rows, columns, first_class;
  int valid;
};

__device__ void store_statistics(const Statistics& to, std::int64_t row, const RowStatistics& statistics,
                                 float target_logit, std::int64_t first_class) {
  to.maximum[row] = statistics.maximum;
  to.exp_sum[row] = statistics.exp_sum;
  to.target_logit[row] = target_logit;
  to.argmax[row] =
      static_cast<std::int32_t>(first_class) + (statistics.argmax == kNoClass ? 0 : statistics.argmax);
}

// The index of a row's target among these columns, negative for a row that does not count.
template <typename T>
__device__ std::int64_t target_of(const Rows<T>& of, std::int64_t row) {
  return row < of.rows && of.targets[row] >= 0 ? of.targets[row] - of.first_class : -1;
}
template <typename T>
__device__ bool has(const Rows<T>& of, std::int64_t target) {
  return target >= 0 && target < of.valid;
}

template <int kThreads, int kWidth, typename T>
__global__ void __launch_bounds__(kThreads, kResident / kThreads) stats_kernel(Statistics to, Rows<T> of) {
  const std::int64_t row = blockIdx.x, target = target_of(of, row);
  const T* x = of.logits + row * of.columns;
  const auto statistics = row_statistics<kThreads, kWidth>(x, of.valid, [] {});
  if (threadIdx.x == 0) {
    store_statistics(to, row, statistics, has(of, target) ? widen(x[target]) : 0.0f, of.first_class);
  }
}

template <int kThreads, int kWidth, typename T, typename L>
__global__ void __launch_bounds__(kThreads, kResident / kThreads)
    backward_kernel(T* dlogits, Rows<L> of, const float* maximum, const float* exp_sum, float scale) {
  const std::int64_t row = blockIdx.x, first = row * of.columns;
  row_gradient<kThreads, kWidth>(dlogits + first, of.logits + first, maximum[row], exp_sum[row],
                                 of.targets[row] >= 0, of.targets[row] - of.first_class, of.columns, of.valid,
                                 scale, [] {});
}

// Statistics, and with kTrain the loss and the gradient, with the row kept in shared memory: logits are read
// from global memory once. A block computes every gridDim.x-th row. The last pass over a row replaces it by
// the next row, so the memory is busy during most of the arithmetic.
template <int kThreads, bool kTrain, typename T>
__global__ void __launch_bounds__(kThreads, kResident / kThreads)
    kept_kernel(T* dlogits, float* losses, Statistics to, Rows<T> of, float scale) {
  constexpr int kWidth = kWide<T>;
  const T* kept = dynamic_shared<T>();
  const T* x = of.logits + blockIdx.x * of.columns;
  if constexpr (kTrain) dlogits += blockIdx.x * of.columns;
  const std::int64_t stride = gridDim.x * of.columns;
  std::int64_t target = target_of(of, blockIdx.x);
  Copier<kThreads, T>(kept, x, true).copy_all(of.valid);
  for (std::int64_t row = blockIdx.x, next = 0; row < of.rows; row = next) {
    next = row + gridDim.x;
    const float target_logit = threadIdx.x == 0 && has(of, target) ? widen(x[target]) : 0.0f;
    const std::int64_t next_target = target_of(of, next);
    x += stride;
    Copier<kThreads, T> copier(kept, x, next < of.rows);
    const auto copy_next = [&] { copier.copy_next(); };
    const auto copy_nothing = [] {};
    commit_copies();
    wait_for_copies<0>();
    RowStatistics statistics;
    if constexpr (kTrain) {
      statistics = row_statistics<kThreads, kWidth>(kept, of.valid, copy_nothing);
    } else {
      statistics = row_statistics<kThreads, kWidth>(kept, of.valid, copy_next);
    }
    if (threadIdx.x == 0) {
      store_statistics(to, row, statistics, target_logit, of.first_class);
      if constexpr (kTrain) {
        losses[row] = target < 0 ? 0.0f : row_loss(statistics.maximum, statistics.exp_sum, target_logit);
      }
    }
    if constexpr (kTrain) {
      row_gradient<kThreads, kWidth>(dlogits, kept, statistics.maximum, statistics.exp_sum, target >= 0,
                                     target, of.columns, of.valid, scale, copy_next);
      if (target < 0) copier.copy_all(of.valid);
      dlogits += stride;
    }
    target = next_target;
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
  losses[row] = targets[row] < 0 ? 0.0f : row_loss(maximum[row], exp_sum[row], target_logit[row]);
}

// f<threads of a block>() for rows of so many columns.
template <typename F>
void with_threads(std::int64_t columns, const F& f) {
  if (columns > kManyColumns) {
    f.template operator()<kMany>();
  } else if (columns > kFewColumns) {
    f.template operator()<kFew>();
  } else {
    f.template operator()<kWarp>();
  }
}

Statistics statistics_of(const CrossEntropy& args) {
  return {args.maximum.as<float>(), args.exp_sum.as<float>(), args.target_logit.as<float>(),
          args.argmax.as<std::int32_t>()};
}
template <typename T>
Rows<T> rows_of(const CrossEntropy& args) {
  return {args.logits.as<T>(), args.targets.as<std::int32_t>(),
          args.logits.rows(),  args.logits.columns(),
          args.first_class,    static_cast<int>(std::max<std::int64_t>(args.valid, 0))};
}

std::size_t row_bytes(const CrossEntropy& args) {
  return static_cast<std::size_t>(args.logits.columns()) * size_of(args.logits.dtype);
}
bool can_keep(const CrossEntropy& args) {
  return row_bytes(args) <= kMostKept && row_bytes(args) % 16 == 0 && aligned(args.logits.data);
}

// Launches as many blocks as run at once.
template <bool kTrain>
void launch_kept(const CrossEntropy& args, cudaStream_t stream) {
  constexpr std::size_t kOwn = 2 << 10;  // shared memory of a block besides the row; 1 KiB is the system's
  const std::size_t row = row_bytes(args),
                    shared =
                        static_cast<std::size_t>(gpu_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  const std::int64_t fit = std::max<std::int64_t>(1, static_cast<std::int64_t>(shared / (row + kOwn))),
                     multiprocessors = gpu_attribute(cudaDevAttrMultiProcessorCount);
  with_type(args.logits.dtype, [&]<typename T>() {
    with_threads(args.logits.columns(), [&]<int kThreads>() {
      const std::int64_t at_once = multiprocessors * std::min<std::int64_t>(fit, kResident / kThreads);
      launch(kept_kernel<kThreads, kTrain, T>, blocks(std::min(args.logits.rows(), at_once)), kThreads, row,
             stream, kTrain ? args.dlogits.as<T>() : nullptr, kTrain ? args.losses.as<float>() : nullptr,
             statistics_of(args), rows_of<T>(args), args.scale);
    });
  });
}

}  // namespace

void CudaBackend::cross_entropy_stats(const CrossEntropy& args) {
  if (can_keep(args)) return launch_kept<false>(args, stream_.get());
  const std::int64_t columns = args.logits.columns();
  with_type(args.logits.dtype, [&]<typename L>() {
    with_threads(columns, [&]<int kThreads>() {
      const bool wide = aligned(args.logits.data) && columns % kWide<L> == 0;
      launch(wide ? stats_kernel<kThreads, kWide<L>, L> : stats_kernel<kThreads, 1, L>,
             blocks(args.logits.rows()), kThreads, 0, stream_.get(), statistics_of(args), rows_of<L>(args));
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
               blocks(args.logits.rows()), kThreads, 0, stream_.get(), args.dlogits.as<T>(), rows_of<L>(args),
               args.maximum.as<float>(), args.exp_sum.as<float>(), args.scale);
      });
    });
  });
}

void CudaBackend::cross_entropy_train(const CrossEntropy& args) {
  if (!can_keep(args) || args.dlogits.dtype != args.logits.dtype || !aligned(args.dlogits.data)) {
    return Backend::cross_entropy_train(args);
  }
  launch_kept<true>(args, stream_.get());
}

}  // namespace shoal::cuda
