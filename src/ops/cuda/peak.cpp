// The peak FLOP/s of a matrix product of this type: so large that only the tensor cores bound it, by the
// fastest algorithm, on operands of a normal distribution (zeros would run faster).
#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/cuda_backend.h"

namespace shoal::cuda {
namespace {

constexpr std::int64_t kSize = 8192;

GpuEvent recorded(cudaStream_t stream) {
  GpuEvent event = make_gpu_event();
  check(cudaEventRecord(event.get(), stream));
  return event;
}

}  // namespace

double CudaBackend::measure_peak_flops(DType compute) {
  const Shape shape{kSize, kSize};
  const auto bytes = static_cast<std::size_t>(shape.count());
  // Normal deviates are computed in the memory of the result.
  const Memory a_memory = take_memory(bytes * size_of(compute)),
               b_memory = take_memory(bytes * size_of(compute)),
               c_memory = take_memory(bytes * sizeof(float));
  const Tensor a{a_memory.get(), compute, shape}, b{b_memory.get(), compute, shape},
      values{c_memory.get(), DType::f32, shape}, c{c_memory.get(), compute, shape};
  for (const Tensor& operand : {a, b}) {
    fill_normal(values, 1, 2, operand.data == a.data ? 0 : shape.count(), 1.0);
    convert(operand, values);
  }
  const Product product{.c = c, .a = a, .b = b, .bias = {}, .transpose_b = true};
  matmul_(product);

  constexpr int kAttempts = 4, kProducts = 20;
  float best = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const GpuEvent begin = recorded(stream_.get());
    for (int i = 0; i < kProducts; ++i) matmul_(product);
    const GpuEvent end = recorded(stream_.get());
    check(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    best = attempt == 0 ? milliseconds : std::min(best, milliseconds);
  }
  return 2.0 * static_cast<double>(kSize) * kSize * kSize * kProducts / (best * 1e-3);
}

}  // namespace shoal::cuda
