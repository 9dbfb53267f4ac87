// Element-wise ops: conversions, sums, initial values, GELU, AdamW.
#include <algorithm>
#include <cmath>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gelu.cuh"

namespace shoal::cuda {
namespace {

template <typename Out, typename In>
struct Convert {
  Out* out;
  const In* x;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    store(out + i, load<kCount>(x + i));
  }
};

template <typename Out, typename T>
struct Add {
  Out* out;
  const T* x;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    auto sum = load<kCount>(out + i);
    const auto term = load<kCount>(x + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) sum.at[j] += term.at[j];
    store(out + i, sum);
  }
};

struct Scale {
  float* out;
  const float* x;
  float factor;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    auto value = load<kCount>(x + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) value.at[j] *= factor;
    store(out + i, value);
  }
};

struct Fill {
  float* out;
  float value;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    Floats<kCount> values;
#pragma unroll
    for (int j = 0; j < kCount; ++j) values.at[j] = value;
    store(out + i, values);
  }
};

struct FillNormal {
  float* out;
  PhiloxKey key;
  std::uint64_t name;
  std::int64_t first;
  double stddev;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    static_assert(kCount == 1);
    const auto element = static_cast<std::uint64_t>(first + i), pair = element / 2;
    const Words words =
        philox_words(key, static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
                     static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32));
    // The same values as to_normals in core/philox.h.
    const auto unit = [](std::uint32_t high, std::uint32_t low) {
      return static_cast<double>((static_cast<std::uint64_t>(high) << 32 | low) >> 11) * 0x1p-53;
    };
    constexpr double kTwoPi = 6.283185307179586476925;
    const double radius = sqrt(-2.0 * log(unit(words.at[1], words.at[0]) + 0x1p-53)),
                 angle = kTwoPi * unit(words.at[3], words.at[2]);
    out[i] = static_cast<float>(stddev * (radius * (element % 2 ? sin(angle) : cos(angle))));
  }
};

template <typename T, Gelu kind>
struct GeluForward {
  T* y;
  const T* x;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    auto value = load<kCount>(x + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      value.at[j] = gelu<kind>(value.at[j]).y;
    }
    store(y + i, value);
  }
};

template <typename T, Gelu kind>
struct GeluBackward {
  T* dx;
  const T* dy;
  const T* x;
  template <int kCount>
  __device__ void at(std::int64_t i) const {
    const auto value = load<kCount>(x + i);
    auto gradient = load<kCount>(dy + i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      gradient.at[j] *= gelu<kind>(value.at[j]).slope;
    }
    store(dx + i, gradient);
  }
};

// AdamW and AccumAdamW. Roundings are explicit (fmaf), so that a window of one step is AdamW bit for bit.
template <typename G>
struct Update {
  float* weights;
  bfloat16* compute;
  float* m;
  float* v;
  float* mean;
  const G* grads;
  const float* grad_scale;
  const AdamWScalars* scalars;
  float beta1, beta2, rest1, rest2, eps, decay, l2_decay, share;

  template <int kCount>
  __device__ void at(std::int64_t i) const {
    // All loads first, so that none waits for the scale.
    auto w = load<kCount>(weights + i), old_m = load<kCount>(m + i), old_v = load<kCount>(v + i),
         g = load<kCount>(grads + i), sum = mean ? load<kCount>(mean + i) : g;
    const float scale = grad_scale ? *grad_scale : 1.0f;
    if (isnan(scale)) {
      if (compute) store(compute + i, w);
      return;
    }
    const AdamWScalars step = *scalars;
    const float keep = 1.0f - step.lr * decay, rate = step.lr / step.correction1,
                root2 = sqrtf(step.correction2);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      g.at[j] *= scale;
      if (l2_decay != 0) g.at[j] = fmaf(l2_decay, w.at[j], g.at[j]);
      const float denominator = sqrtf(mixed_v(old_v.at[j], g.at[j])) / root2 + eps;
      w.at[j] = fmaf(w.at[j], keep, -(rate * mixed_m(old_m.at[j], g.at[j]) / denominator));
      sum.at[j] = mean ? fmaf(g.at[j], share, sum.at[j]) : g.at[j];
      old_m.at[j] = mixed_m(old_m.at[j], sum.at[j]);
      old_v.at[j] = mixed_v(old_v.at[j], sum.at[j]);
    }
    store(weights + i, w);
    if (compute) store(compute + i, w);
    if (mean) {
      if (step.commit) sum = {};
      store(mean + i, sum);
    }
    if (!step.commit) return;
    store(m + i, old_m);
    store(v + i, old_v);
  }

  __device__ float mixed_m(float old, float g) const { return fmaf(beta1, old, rest1 * g); }
  __device__ float mixed_v(float old, float g) const { return fmaf(beta2, old, rest2 * g * g); }
};

__global__ void clip_scale_kernel(float* scale, const double* squares, double max_norm, const double* losses,
                                  std::int64_t count) {
  const double norm = sqrt(*squares);
  double result = max_norm > 0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
  if (!isfinite(norm)) result = nan("");
  for (std::int64_t i = 0; i < count; ++i) {
    if (!isfinite(losses[i])) result = nan("");
  }
  *scale = static_cast<float>(result);
}

// Some small tensors of numbers of two bytes or four, in pairs of bytes.
struct SmallTensors {
  static constexpr int kMost = 8;
  std::uint16_t* data[kMost];
  unsigned counts[kMost];
};
// A row of blocks for each.
__global__ void zero_kernel(SmallTensors tensors) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < tensors.counts[blockIdx.y]) tensors.data[blockIdx.y][i] = 0;
}

}  // namespace

void CudaBackend::zero_each(std::span<const Tensor> tensors) {
  constexpr std::size_t kSmall = std::size_t{256} << 10;  // bytes
  constexpr unsigned kThreads = 256;
  SmallTensors some{};
  unsigned taken = 0, most = 0;
  const auto flush = [&] {
    launch(zero_kernel, blocks(ceil_div(most, kThreads), taken), kThreads, 0, stream_.get(), some);
    taken = most = 0;
  };
  for (const Tensor& x : tensors) {
    if (x.bytes() > kSmall) {
      zero(x);
      continue;
    }
    const auto count = static_cast<unsigned>(x.bytes() / sizeof(std::uint16_t));
    some.data[taken] = x.as<std::uint16_t>();
    some.counts[taken++] = count;
    most = std::max(most, count);
    if (taken == SmallTensors::kMost) flush();
  }
  if (taken > 0) flush();
}

void CudaBackend::convert(const Tensor& out, const Tensor& x) {
  if (out.dtype == x.dtype) {
    check(cudaMemcpyAsync(out.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice, stream_.get()));
    return;
  }
  with_type(out.dtype, [&]<typename Out>() {
    with_type(x.dtype, [&]<typename In>() {
      for_elements<4>(x.count(), aligned(out.data, x.data), Convert<Out, In>{out.as<Out>(), x.as<In>()},
                      stream_.get());
    });
  });
}

void CudaBackend::add(const Tensor& out, const Tensor& x) {
  with_type(out.dtype, [&]<typename Out>() {
    with_type(x.dtype, [&]<typename T>() {
      for_elements<4>(x.count(), aligned(out.data, x.data), Add<Out, T>{out.as<Out>(), x.as<T>()},
                      stream_.get());
    });
  });
}

void CudaBackend::scale(const Tensor& out, const Tensor& x, float factor) {
  for_elements<4>(x.count(), aligned(out.data, x.data), Scale{out.as<float>(), x.as<float>(), factor},
                  stream_.get());
}

void CudaBackend::fill(const Tensor& out, float value) {
  for_elements<4>(out.count(), aligned(out.data), Fill{out.as<float>(), value}, stream_.get());
}

void CudaBackend::fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                              double stddev) {
  for_elements<1>(out.count(), true,
                  FillNormal{out.as<float>(), philox_key(seed, PhiloxStream::init), name, first, stddev},
                  stream_.get());
}

void CudaBackend::gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) {
  with_type(x.dtype, [&]<typename T>() {
    const auto run = [&](const auto& op) {
      for_elements<8>(x.count(), aligned(y.data, x.data), op, stream_.get());
    };
    kind == Gelu::tanh ? run(GeluForward<T, Gelu::tanh>{y.as<T>(), x.as<T>()})
                       : run(GeluForward<T, Gelu::erf>{y.as<T>(), x.as<T>()});
  });
}

void CudaBackend::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) {
  with_type(x.dtype, [&]<typename T>() {
    const auto run = [&](const auto& op) {
      for_elements<8>(x.count(), aligned(dx.data, dy.data, x.data), op, stream_.get());
    };
    kind == Gelu::tanh ? run(GeluBackward<T, Gelu::tanh>{dx.as<T>(), dy.as<T>(), x.as<T>()})
                       : run(GeluBackward<T, Gelu::erf>{dx.as<T>(), dy.as<T>(), x.as<T>()});
  });
}

void CudaBackend::adamw(const AdamWTensors& args, const AdamWSettings& settings) {
  const auto& [weights, compute, m, v, mean, grads] = args;
  with_type(grads.dtype, [&]<typename G>() {
    const Update<G> update{.weights = weights.as<float>(),
                           .compute = compute.as<bfloat16>(),
                           .m = m.as<float>(),
                           .v = v.as<float>(),
                           .mean = mean.as<float>(),
                           .grads = grads.as<G>(),
                           .grad_scale = settings.grad_scale,
                           .scalars = settings.scalars,
                           .beta1 = settings.beta1,
                           .beta2 = settings.beta2,
                           .rest1 = 1.0f - settings.beta1,
                           .rest2 = 1.0f - settings.beta2,
                           .eps = settings.eps,
                           .decay = settings.l2 ? 0.0f : settings.weight_decay,
                           .l2_decay = settings.l2 ? settings.weight_decay : 0.0f,
                           .share = settings.share};
    for_elements<8>(weights.count(),
                    aligned(weights.data, compute.data, m.data, v.data, mean.data, grads.data), update,
                    stream_.get());
  });
}

void CudaBackend::clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                             const Tensor& losses) {
  launch(clip_scale_kernel, 1, 1, 0, stream_.get(), scale.as<float>(), squares.as<double>(), max_norm,
         losses.as<double>(), losses ? losses.count() : 0);
}

}  // namespace shoal::cuda
