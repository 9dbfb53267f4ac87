// One allocation, handed out in pieces. An arena without a backend only adds up sizes, so the memory of a
// model is computed by the code that takes it.
#pragma once

#include <algorithm>
#include <span>

#include "core/tensor.h"
#include "ops/kernels.h"

namespace shoal {

class Arena {
 public:
  Arena() = default;  // measures
  Arena(Backend& backend, std::size_t bytes)
      : backend_(&backend), base_(static_cast<std::byte*>(backend.allocate(bytes))), capacity_(bytes) {}
  // Hands out memory that another object owns.
  explicit Arena(std::span<std::byte> memory) : base_(memory.data()), capacity_(memory.size()) {}
  ~Arena() {
    if (backend_) backend_->release(base_, capacity_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Tensor take(DType dtype, Shape shape) {
    Tensor tensor{base_ ? base_ + used_ : nullptr, dtype, shape};
    used_ = std::min(used_ + bytes_of(tensor), kMost);
    assert(!base_ || used_ <= capacity_);
    return tensor;
  }
  std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  // Sizes are capped here, so that those of an absurd model do not overflow and look small.
  static constexpr std::size_t kMost = std::size_t{1} << 62;

  static std::size_t bytes_of(const Tensor& tensor) {
    double bytes = static_cast<double>(size_of(tensor.dtype));
    for (int i = 0; i < tensor.shape.rank(); ++i) bytes *= static_cast<double>(tensor.shape[i]);
    if (bytes >= static_cast<double>(kMost)) return kMost;
    return (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }

  Backend* backend_ = nullptr;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
};

}  // namespace shoal
