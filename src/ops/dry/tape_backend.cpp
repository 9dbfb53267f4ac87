#include "ops/dry/tape_backend.h"

namespace shoal {

double TapeBackend::bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const auto& tensor : tensors) {
    if (tensor) bytes += static_cast<double>(tensor.bytes());
  }
  return bytes;
}

void TapeBackend::memory(std::initializer_list<Tensor> tensors) {
  kernels_.push_back({.bytes = bytes_of(tensors)});
}

void TapeBackend::product(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                          std::initializer_list<Tensor> tensors) {
  kernels_.push_back(
      {.kind = Kernel::Kind::product,
       .flops = 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth),
       .bytes = bytes_of(tensors),
       .rows = rows,
       .columns = columns,
       .depth = depth});
}

void TapeBackend::attention(const Tensor& qkv, int products, std::initializer_list<Tensor> tensors) {
  const auto positions = static_cast<double>(qkv.dim(1));
  const auto width = static_cast<double>(qkv.dim(3) * qkv.dim(4));
  kernels_.push_back({.kind = Kernel::Kind::attention,
                      .flops = products * static_cast<double>(qkv.dim(0)) * positions * positions * width,
                      .bytes = bytes_of(tensors),
                      .rows = qkv.dim(0) * qkv.dim(3),
                      .columns = qkv.dim(1),
                      .depth = qkv.dim(4)});
}

}  // namespace shoal
