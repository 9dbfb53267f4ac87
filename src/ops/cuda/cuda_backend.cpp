#include "ops/cuda/cuda_backend.h"

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/gelu_product.h"
#include "ops/cuda/graph.h"

namespace shoal::cuda {

CudaBackend::CudaBackend(const CudaOptions& options)
    : options_(options),
      gpu_(options.device),
      stream_(make_gpu_stream()),
      in_(make_gpu_stream()),
      out_(make_gpu_stream()),
      mailbox_(stream_.get()),
      matmul_(stream_.get(), gpu_.name,
              {.tf32 = options.tf32, .tune = options.tune, .choices = options.choices}),
      fused_attention_(make_fused_attention(stream_.get(), scratch_, options.ordered)) {}

Gpu CudaBackend::gpu() const {
  char place[32] = "";
  check(cudaDeviceGetPCIBusId(place, sizeof place, gpu_.number));
  return {gpu_.number, place, stream_.get()};
}

// The memory is zeroed when this returns, as the next copy may be on another stream.
void* CudaBackend::allocate(std::size_t bytes) {
  Memory memory = take_memory(bytes);
  check(cudaMemsetAsync(memory.get(), 0, std::max<std::size_t>(bytes, 1), stream_.get()));
  check(cudaStreamSynchronize(stream_.get()));
  return memory.release();
}

// cudaFree waits for what may still use the memory.
void CudaBackend::release(void* data, std::size_t) { cudaFree(data); }

void CudaBackend::copy_to_host(void* host, const Tensor& from) {
  if (from.bytes() <= Mailbox::kMost) return mailbox_.fetch(host, from.data, from.bytes());
  check(cudaMemcpyAsync(host, from.data, from.bytes(), cudaMemcpyDeviceToHost, stream_.get()));
  check(cudaStreamSynchronize(stream_.get()));
}

// Pageable memory has been read when this returns; pinned memory must not change until the copy is complete.
void CudaBackend::copy_from_host(const Tensor& to, const void* host) {
  if (to.bytes() <= Mailbox::kMost) return mailbox_.send(to.data, host, to.bytes());
  check(cudaMemcpyAsync(to.data, host, to.bytes(), cudaMemcpyHostToDevice, stream_.get()));
}

bool CudaBackend::is_device_memory(const void* data) const {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeDevice;
}

void CudaBackend::synchronize() {
  for (const auto* stream : {&stream_, &in_, &out_}) check(cudaStreamSynchronize(stream->get()));
}

void* CudaBackend::allocate_host(std::size_t bytes) { return take_pinned(bytes).release(); }

void CudaBackend::release_host(void* data, std::size_t) { cudaFreeHost(data); }

void CudaBackend::copy_in(const Tensor& to, const void* host) {
  check(cudaMemcpyAsync(to.data, host, to.bytes(), cudaMemcpyHostToDevice, in_.get()));
}

void CudaBackend::copy_out(void* host, const Tensor& from) {
  check(cudaMemcpyAsync(host, from.data, from.bytes(), cudaMemcpyDeviceToHost, out_.get()));
}

cudaStream_t CudaBackend::handle(Stream stream) const {
  return stream == Stream::copy_in ? in_.get() : stream == Stream::copy_out ? out_.get() : stream_.get();
}

namespace {

struct CudaEvent final : Device::Event {
  GpuEvent handle = make_gpu_event(cudaEventDisableTiming);
  // A capture may refuse to wait for an event that never was.
  bool recorded = false;
};
const CudaEvent& of_cuda(const Device::Event& event) { return static_cast<const CudaEvent&>(event); }

}  // namespace

std::unique_ptr<Device::Event> CudaBackend::make_event() { return std::make_unique<CudaEvent>(); }

void CudaBackend::record(Event& event, Stream stream) {
  auto& here = static_cast<CudaEvent&>(event);
  check(cudaEventRecord(here.handle.get(), handle(stream)));
  here.recorded = true;
}

void CudaBackend::wait(Stream stream, const Event& event) {
  const auto& there = of_cuda(event);
  if (there.recorded) check(cudaStreamWaitEvent(handle(stream), there.handle.get(), 0));
}

void CudaBackend::synchronize(const Event& event) {
  if (of_cuda(event).recorded) check(cudaEventSynchronize(of_cuda(event).handle.get()));
}

void CudaBackend::begin_capture() { cuda::begin_capture(stream_.get()); }
std::unique_ptr<CapturedGraph> CudaBackend::end_capture() { return cuda::end_capture(stream_.get()); }

void CudaBackend::zero(const Tensor& x) { check(cudaMemsetAsync(x.data, 0, x.bytes(), stream_.get())); }

void CudaBackend::linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (x.rows() <= kFewRows) return few_rows_product(y, x, w, bias, stream_.get());
  matmul_({.c = y, .a = x, .b = w, .bias = bias, .transpose_b = true});
}

void CudaBackend::linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) {
  matmul_({.c = dx, .a = dy, .b = w, .bias = {}});
}

void CudaBackend::linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy,
                                         const Tensor& x, bool overwrite) {
  Product product{.c = dw, .a = dy, .b = x, .transpose_a = true, .accumulate = !overwrite};
  if (!dbias) return matmul_(product);
  const auto in_steps = [&](const Product& to) {
    matmul_({.c = to.c, .a = dy, .b = x, .transpose_a = true, .accumulate = !overwrite});
    add_column_sums(to.aux, dy);
  };
  product.aux = dbias;
  product.epilogue = Epilogue::column_sums;
  // The library's epilogue makes sums of the result's type.
  dw.dtype == DType::f32 ? fused(product, in_steps) : in_steps(product);
}

void CudaBackend::linear_gelu_forward(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                                      const Tensor& bias, Gelu kind) {
  if (x.rows() <= kFewRows) return few_rows_gelu(y, hidden, x, w, bias, kind, stream_.get());
  with_gelu(
      {.c = y, .a = x, .b = w, .bias = bias, .aux = hidden, .epilogue = Epilogue::gelu, .transpose_b = true},
      kind, [&] {
        linear_forward(hidden, x, w, bias);
        gelu_forward(y, hidden, kind);
      });
}

void CudaBackend::linear_gelu_backward(const Tensor& dhidden, const Tensor& dy, const Tensor& w,
                                       const Tensor& hidden, Gelu kind, const Tensor& dbias) {
  with_gelu({.c = dhidden, .a = dy, .b = w, .aux = hidden, .sums = dbias, .epilogue = Epilogue::gelu_slope},
            kind, [&] {
              linear_backward_input(dhidden, dy, w);
              gelu_backward(dhidden, dhidden, hidden, kind);
            });
}

bool CudaBackend::gelu_backward_sums() const { return has_gelu_product(); }

void CudaBackend::with_gelu(const Product& product, Gelu kind, const std::function<void()>& in_steps) {
  const auto add_sums = [&](const Product& of) { add_column_sums(of.sums, of.c); };
  const auto parts = [&](const Product& of) {
    if (gelu_product(of, kind, scratch_, stream_.get())) return;
    in_steps();
    if (of.sums) add_sums(of);
  };
  if (kind == Gelu::tanh) {
    fused(product, parts, add_sums);
  } else {
    parts(product);  // the library has no such epilogue
  }
}

// The exactness of the library's epilogues is not documented; rounding to bfloat16 hides it.
void CudaBackend::fused(const Product& product, const Matmul::Parts& parts, const Matmul::Parts& after) {
  if (product.a.dtype == DType::bf16) {
    matmul_(product, parts, after);
  } else {
    parts(product);
  }
}

}  // namespace shoal::cuda
