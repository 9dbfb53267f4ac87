#include "ops/cuda/cuda_backend.h"

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/graph.h"

namespace shoal::cuda {

CudaBackend::CudaBackend(const CudaOptions& options)
    : options_(options),
      device_(options.device),
      stream_(make_stream()),
      mailbox_(stream_.get()),
      matmul_(stream_.get(), {.tf32 = options.tf32, .tune = options.tune}) {}

Gpu CudaBackend::gpu() const {
  char place[32] = "";
  check(cudaDeviceGetPCIBusId(place, sizeof place, device_.number));
  return {device_.number, place, stream_.get()};
}

void* CudaBackend::allocate(std::size_t bytes) {
  Memory memory = take_memory(bytes);
  check(cudaMemsetAsync(memory.get(), 0, std::max<std::size_t>(bytes, 1), stream_.get()));
  return memory.release();
}

// cudaFree waits for what may still use the memory.
void CudaBackend::release(void* data, std::size_t) { cudaFree(data); }

void CudaBackend::copy_to_host(void* host, const Tensor& from) {
  if (from.bytes() <= Mailbox::kMost) return mailbox_.fetch(host, from.data, from.bytes());
  check(cudaMemcpyAsync(host, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream_.get()));
  check(cudaStreamSynchronize(stream_.get()));
}

// Memory that is not pinned has been read when this returns; pinned memory has to stay as it is until the
// copy is over.
void CudaBackend::copy_from_host(const Tensor& to, const void* host) {
  if (to.bytes() <= Mailbox::kMost) return mailbox_.send(to.data, host, to.bytes());
  check(cudaMemcpyAsync(to.data, host, to.bytes(), cudaMemcpyHostToDevice, stream_.get()));
}

bool CudaBackend::is_remote(const void* data) const {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeDevice;
}

void CudaBackend::begin_recording() { begin_capture(stream_.get()); }
std::unique_ptr<RecordedWork> CudaBackend::end_recording() { return end_capture(stream_.get()); }

void CudaBackend::synchronize() { check(cudaStreamSynchronize(stream_.get())); }

void CudaBackend::zero(const Tensor& x) { check(cudaMemsetAsync(x.data, 0, x.bytes(), stream_.get())); }

void CudaBackend::linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) {
  matmul_({.c = y, .a = x, .b = w, .bias = bias, .transpose_b = true});
}

void CudaBackend::linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) {
  matmul_({.c = dx, .a = dy, .b = w, .bias = {}});
}

void CudaBackend::linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy,
                                         const Tensor& x) {
  matmul_({.c = dw, .a = dy, .b = x, .bias = {}, .transpose_a = true, .accumulate = true});
  if (dbias) add_column_sums(dbias, dy);
}

}  // namespace shoal::cuda
