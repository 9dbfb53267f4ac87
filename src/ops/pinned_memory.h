// Pinned memory of the host, which copies beside the backend's kernels need.
#pragma once

#include <cstddef>
#include <span>

#include "ops/device.h"

namespace shoal {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(Device& device, std::size_t bytes) : device_(&device) {
    if (bytes > 0) bytes_ = {static_cast<std::byte*>(device.allocate_host(bytes)), bytes};
  }
  ~PinnedMemory() {
    if (!bytes_.empty()) device_->release_host(bytes_.data(), bytes_.size());
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  std::span<std::byte> bytes_;
};

}  // namespace shoal
