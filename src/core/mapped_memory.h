// Memory on a file, for state that is larger than the machine's memory. The system reads its pages when they
// are touched, ahead where they are touched in order, and writes them back when it needs the room or is told
// that they are not needed for now. (Requesting pages ahead of time made streaming through such memory two to
// four times slower.)
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "core/file.h"

namespace shoal {

class MappedMemory {
 public:
  MappedMemory() = default;
  // Zeroed, 4 KiB-aligned, on a file in `folder` whose name is removed at once: its room on the disk, which
  // is reserved here, is free again when the memory or the process is gone, however that ends. Throws
  // UserError when the folder cannot be written to or its disk has too little room.
  MappedMemory(const std::filesystem::path& folder, std::size_t bytes);
  MappedMemory(MappedMemory&& other) noexcept
      : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

  // A hint, which never changes the contents: the part of bytes() leaves this process's memory at once, and
  // its changes start on their way to the disk. Touching it again soon costs page faults, but no reading as
  // long as the system has room to keep it.
  void done_with(std::span<const std::byte> part) const;

 private:
  FileDescriptor file_;
  std::span<std::byte> bytes_;
};

}  // namespace shoal
