#include "checkpoint/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/reader.h"
#include "checkpoint/worker_source.h"
#include "core/error.h"

namespace shoal {
namespace {

constexpr std::int64_t kElementsAtATime = 4 << 20;

std::string models_text(int workers) {
  return workers == 1 ? "one model" : fmt::format("{} workers' models", workers);
}

// float32 values by their bits: NaN equals itself, and 0 is not -0.
void compare_values(TensorDifference& difference, std::span<const std::byte> a, std::span<const std::byte> b,
                    DType dtype) {
  const std::size_t width = size_of(dtype);
  for (std::size_t at = 0; at < a.size(); at += width) {
    if (std::memcmp(a.data() + at, b.data() + at, width) == 0) continue;
    ++difference.elements;
    if (dtype != DType::f32) continue;
    float x = 0, y = 0;
    std::memcpy(&x, a.data() + at, width);
    std::memcpy(&y, b.data() + at, width);
    const double apart = std::abs(static_cast<double>(x) - y);
    if (std::isnan(apart) || apart > difference.largest) difference.largest = apart;
  }
}

TensorDifference compare_tensor(CheckpointReader& a, CheckpointReader& b, const TensorRecord& in_a,
                                const TensorRecord& in_b) {
  TensorDifference difference{.name = in_a.name};
  if (in_a.dtype != in_b.dtype) {
    difference.what = fmt::format("{} and {}", name_of(in_a.dtype), name_of(in_b.dtype));
  } else if (in_a.shape != in_b.shape) {
    difference.what = fmt::format("shapes {} and {}", in_a.shape.to_string(), in_b.shape.to_string());
  }
  if (!difference.what.empty()) return difference;
  auto slice = whole_slice(in_a.name, in_a.dtype, in_a.shape);
  const std::int64_t count = in_a.shape.count();
  std::vector<std::byte> x, y;
  for (std::int64_t first = 0; first < count; first += kElementsAtATime) {
    slice.flat_begin = first;
    slice.flat_end = std::min(count, first + kElementsAtATime);
    x.resize(slice.bytes());
    y.resize(slice.bytes());
    a.read(slice, x);
    b.read(slice, y);
    if (x != y) compare_values(difference, x, y, in_a.dtype);
  }
  return difference;
}

}  // namespace

CheckpointComparison compare_checkpoints(const std::filesystem::path& where_a,
                                         const std::filesystem::path& where_b) {
  CheckpointReader a(where_a), b(where_b);
  if (const int in_a = workers_of(a), in_b = workers_of(b); in_a != in_b) {
    fail("{} is of {} and {} of {}; `shoal checkpoint average` makes one model of several",
         a.directory().string(), models_text(in_a), b.directory().string(), models_text(in_b));
  }
  CheckpointComparison result;
  for (const auto& tensor : a.manifest().tensors) {
    const auto* other = b.find(tensor.name);
    if (!other) {
      result.differences.push_back({.name = tensor.name, .what = "only in the first"});
      continue;
    }
    ++result.tensors;
    auto difference = compare_tensor(a, b, tensor, *other);
    if (!difference.what.empty() || difference.elements > 0)
      result.differences.push_back(std::move(difference));
  }
  for (const auto& tensor : b.manifest().tensors) {
    if (!a.find(tensor.name)) {
      result.differences.push_back({.name = tensor.name, .what = "only in the second"});
    }
  }
  return result;
}

}  // namespace shoal
