// Shared by the fuzzers: files in memory, and the one kind of exception that bad input may cause.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/weights_reader.h"
#include "core/error.h"

namespace shoal::fuzz {

namespace fs = std::filesystem;

// A file in memory with the bytes of an input.
class InputFile {
 public:
  InputFile(const std::uint8_t* data, std::size_t size) : fd_(memfd_create("input", 0)) {
    if (fd_ < 0 || write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  fs::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// A folder in memory, for formats of several files; the input is cut at zero bytes, one part for each file.
class InputFolder {
 public:
  InputFolder() {
    std::string name = "/dev/shm/shoal-fuzz-XXXXXX";
    if (!mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~InputFolder() { fs::remove_all(path_); }
  InputFolder(const InputFolder&) = delete;
  const fs::path& path() const { return path_; }

  // The last file gets the rest of the input.
  void write(const std::uint8_t* data, std::size_t size, std::span<const char* const> names) const {
    std::string_view rest(reinterpret_cast<const char*>(data), size);
    for (const char* name : names) {
      const auto end = name == names.back() ? rest.size() : std::min(rest.find('\0'), rest.size());
      std::ofstream(path_ / name, std::ios::binary) << rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }

 private:
  fs::path path_;
};

// Bad input is a UserError; anything else ends the fuzzer.
template <typename Action>
int try_input(Action&& action) {
  try {
    action();
  } catch (const UserError&) {
  }
  return 0;
}

// Touches every byte, so that the address sanitizer sees those outside the file.
inline void touch(std::span<const std::byte> bytes) {
  static volatile unsigned sum = 0;
  for (const auto byte : bytes) sum = sum + static_cast<unsigned>(byte);
}

// Reads every parameter, each whole and its last row alone.
inline void read_all(WeightsReader& reader) {
  std::vector<std::byte> data;
  for (const auto& tensor : weights_tensors(reader.model())) {
    auto slice = whole_slice(tensor.full_name(), DType::f32, tensor.shape);
    data.resize(slice.bytes());
    reader.read(slice, data);
    slice = box_slice(slice.name, DType::f32, tensor.shape, 0, tensor.shape[0] - 1, 1);
    data.resize(slice.bytes());
    reader.read(slice, data);
  }
}

}  // namespace shoal::fuzz
