// Memory that is kept across calls and grows when needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace shoal::cpu {

// At least 64 bytes aligned; large memory in huge pages. To be freed by std::free. Throws std::bad_alloc.
void* aligned_memory(std::size_t bytes);

class GrowingMemory {
 public:
  // Memory for so many elements, with any content. It ends what was taken before.
  template <typename T>
  T* take(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      memory_.reset();
      bytes_ = 0;
      memory_.reset(aligned_memory(bytes));
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  std::unique_ptr<void, decltype(&std::free)> memory_{nullptr, &std::free};
  std::size_t bytes_ = 0;
};

}  // namespace shoal::cpu
