// Tensors with known values, and the sizes and types that the conformance suite checks.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace shoal::test {

inline constexpr DType kEveryType[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32};
inline constexpr DType kReducedTypes[] = {DType::f32, DType::bf16, DType::f64, DType::i32};

// The value of element i on rank r before a collective: small integers, whose sums over up to 16 ranks are
// exact in every type and order.
inline int value_of(int rank, std::int64_t i) {
  return static_cast<int>((rank * 5 + i * 3 + (i >> 7) + (i >> 13)) & 15) - 8;
}

// The memory of a tensor, with guard values around it.
class GuardedValues {
 public:
  GuardedValues(DType dtype, std::int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(2 * kGuard + static_cast<std::size_t>(count) * size_of(dtype), kMark) {}

  Tensor tensor() { return part(0, count_); }
  Tensor part(std::int64_t first, std::int64_t count) {
    return {bytes_.data() + kGuard + first * static_cast<std::int64_t>(size_of(dtype_)), dtype_, {count}};
  }

  // Sets every element i to value(i).
  template <typename Value>
  void fill(const Value& value) {
    each([&](auto& element, std::int64_t i) { store(element, value(i)); });
  }
  // Throws unless every element i is value(i) and the guards are unchanged.
  template <typename Value>
  void expect(std::string_view what, const Value& value) {
    each([&](auto& element, std::int64_t i) {
      auto wanted = element;
      store(wanted, value(i));
      if (std::memcmp(&wanted, &element, sizeof element) != 0) {
        fail("{} of {} {}: element {} is not {}", what, count_, name_of(dtype_), i, value(i));
      }
    });
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kMark || bytes_[bytes_.size() - 1 - i] != kMark) {
        fail("{} of {} {}: memory beside the tensor was written", what, count_, name_of(dtype_));
      }
    }
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};

  static void store(float& to, int value) { to = static_cast<float>(value); }
  static void store(double& to, int value) { to = value; }
  static void store(std::int32_t& to, int value) { to = value; }
  static void store(std::int8_t& to, int value) { to = static_cast<std::int8_t>(value); }
  static void store(bfloat16& to, int value) { to = to_bfloat16(static_cast<float>(value)); }
  static void store(std::uint16_t& to, int value) {
    to = static_cast<std::uint16_t>(value);
  }  // float16's bits

  template <typename T, typename Visit>
  void each_of(const Visit& visit) {
    for (std::int64_t i = 0; i < count_; ++i) visit(*(tensor().as<T>() + i), i);
  }
  template <typename Visit>
  void each(const Visit& visit) {
    switch (dtype_) {
      case DType::f32:
        return each_of<float>(visit);
      case DType::bf16:
        return each_of<bfloat16>(visit);
      case DType::f16:
        return each_of<std::uint16_t>(visit);
      case DType::f64:
        return each_of<double>(visit);
      case DType::i32:
        return each_of<std::int32_t>(visit);
      case DType::i8:
        return each_of<std::int8_t>(visit);
    }
  }

  DType dtype_;
  std::int64_t count_;
  std::vector<std::byte> bytes_;
};

inline std::vector<std::int64_t> counts_around(std::int64_t chunk, DType dtype) {
  const auto n = chunk / static_cast<std::int64_t>(size_of(dtype));
  return {0, 1, 7, n - 1, n, n + 1, 3 * n + 13};
}

inline int reduced_value(int ranks, std::int64_t i, ReduceOp op) {
  int result = value_of(0, i);
  for (int r = 1; r < ranks; ++r) {
    const int value = value_of(r, i);
    result = op == ReduceOp::sum   ? result + value
             : op == ReduceOp::max ? std::max(result, value)
                                   : std::min(result, value);
  }
  return result;
}

// Counts of one piece and of several, for what does not decide how a tensor is cut.
inline std::vector<std::int64_t> few_counts(std::int64_t chunk, DType dtype) {
  return {7, chunk / static_cast<std::int64_t>(size_of(dtype)) + 1};
}

// Calls check(dtype, count, op) for sums of every type and count, and for the other ops of every type.
inline void for_each_reduction(std::int64_t chunk,
                               const std::function<void(DType, std::int64_t, ReduceOp)>& check) {
  for (const auto dtype : kReducedTypes) {
    for (const auto count : counts_around(chunk, dtype)) check(dtype, count, ReduceOp::sum);
    for (const auto count : few_counts(chunk, dtype)) {
      check(dtype, count, ReduceOp::max);
      check(dtype, count, ReduceOp::min);
    }
  }
}

// Every count for an element of each size, and few for the other types: copies are of bytes.
inline void for_each_copy(std::int64_t chunk, const std::function<void(DType, std::int64_t)>& check) {
  for (const auto dtype : kEveryType) {
    const bool same_size = dtype == DType::f16 || dtype == DType::i32;  // as bfloat16 and float32
    for (const auto count : same_size ? few_counts(chunk, dtype) : counts_around(chunk, dtype))
      check(dtype, count);
  }
}

}  // namespace shoal::test
