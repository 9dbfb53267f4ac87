#include "ops/dry/dry_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace shoal {

void* DryBackend::allocate(std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) fail("cannot reserve {} bytes of addresses: {}", bytes, std::strerror(errno));
  allocated_ += bytes;
  most_ = std::max(most_, allocated_);
  return data;
}

void DryBackend::release(void* data, std::size_t bytes) {
  bytes = std::max<std::size_t>(bytes, 1);
  munmap(data, bytes);
  allocated_ -= bytes;
}

void DryBackend::copy_to_host(void* host, const Tensor& from) { std::memset(host, 0, from.bytes()); }

void DryBackend::count_product(std::int64_t rows, const Tensor& weights) {
  flops_ += 2.0 * static_cast<double>(rows) * static_cast<double>(weights.count());
}

// Scores and their product with the values: two products of T x T x C in a pass.
void DryBackend::count_attention(const Tensor& qkv, int passes) {
  const auto width = static_cast<double>(qkv.dim(3) * qkv.dim(4));
  const auto positions = static_cast<double>(qkv.dim(1));
  flops_ += passes * 4.0 * static_cast<double>(qkv.dim(0)) * positions * positions * width;
}

void DryBackend::linear_forward(const Tensor&, const Tensor& x, const Tensor& w, const Tensor&) {
  count_product(x.rows(), w);
}
void DryBackend::linear_backward_input(const Tensor&, const Tensor& dy, const Tensor& w) {
  count_product(dy.rows(), w);
}
void DryBackend::linear_backward_weight(const Tensor& dw, const Tensor&, const Tensor& dy, const Tensor&,
                                        bool) {
  count_product(dy.rows(), dw);
}

void DryBackend::attention_forward(const Tensor&, const Tensor&, const Tensor& qkv, std::int64_t,
                                   const Dropout&) {
  count_attention(qkv, 1);
}
void DryBackend::attention_backward(const AttentionBackward& args) { count_attention(args.qkv, 2); }

}  // namespace shoal
