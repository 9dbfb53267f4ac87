// Shared by the checkpoint tests: temporary folders, reproducible random numbers, tensors with data.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "checkpoint/slice.h"
#include "checkpoint/writer.h"
#include "core/error.h"
#include "core/philox.h"

namespace shoal::test {

namespace fs = std::filesystem;

class ScratchDir {
 public:
  explicit ScratchDir(const fs::path& parent = fs::temp_directory_path()) {
    std::string name = (parent / "shoal-checkpoint-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// A stream of random numbers, equal in every run.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : key_(philox_key(seed, PhiloxStream::shuffle)) {}
  // In [low, high].
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto block = philox(key_, {counter_++, 0, 0, 0});
    return low + static_cast<std::int64_t>(to_below(block, static_cast<std::uint64_t>(high - low + 1)));
  }

 private:
  PhiloxKey key_;
  std::uint32_t counter_ = 0;
};

inline std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; i += sizeof(PhiloxBlock)) {
    const auto block = philox(philox_key(seed, PhiloxStream::init), {static_cast<std::uint32_t>(i), 0, 0, 0});
    std::memcpy(&bytes[i], block.data(), std::min(size - i, sizeof block));
  }
  return bytes;
}

inline std::string slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void spill(const fs::path& path, std::string_view text) {
  fs::remove(path);  // truncating an old file makes some file systems flush the new one when it is closed
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline void flip_byte(const fs::path& path, std::size_t at) {
  std::string text = slurp(path);
  ASSERT_LT(at, text.size());
  text[at] = static_cast<char>(text[at] ^ 1);
  spill(path, text);
}

// "key": [[[...]]], deeper than recursion could follow.
inline std::string deep_json(const std::string& key) {
  constexpr int kDeep = 200'000;
  return "\"" + key + "\":" + std::string(kDeep, '[') + std::string(kDeep, ']');
}

// The message of the UserError that `action` throws, or "".
template <typename Action>
std::string user_error(Action&& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

// A whole tensor of random bytes.
struct TestTensor {
  TestTensor(std::string name, DType dtype, const Shape& shape, std::uint64_t seed)
      : slice(whole_slice(std::move(name), dtype, shape)), data(random_bytes(slice.bytes(), seed)) {}
  SliceView view() const { return {slice, data}; }

  TensorSlice slice;
  std::vector<std::byte> data;
};

// The elements of a slice, computed one by one: the reference for faster code.
inline std::vector<std::byte> cut(const TestTensor& tensor, const TensorSlice& slice) {
  const std::size_t element = size_of(slice.dtype);
  std::vector<std::byte> out;
  for (std::int64_t i = slice.flat_begin; i < slice.flat_end; ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (int dim = slice.shape.rank() - 1; dim >= 0; --dim) {
      at += (slice.offset[dim] + rest % slice.shape[dim]) * stride;
      rest /= slice.shape[dim];
      stride *= slice.global_shape[dim];
    }
    const auto* from = tensor.data.data() + static_cast<std::size_t>(at) * element;
    out.insert(out.end(), from, from + element);
  }
  return out;
}

}  // namespace shoal::test
