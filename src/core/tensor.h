// A view of memory with an element type and a row-major shape. It owns nothing.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace shoal {

// Up to five dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    assert(dims.size() <= kMaxRank);
    for (auto dim : dims) dims_[static_cast<std::size_t>(rank_++)] = dim;
  }

  int rank() const { return rank_; }
  // Negative indices count from the innermost dimension, as in Python.
  std::int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)]; }
  std::int64_t& operator[](int i) { return dims_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)]; }
  void push_back(std::int64_t dim) {
    assert(rank_ < kMaxRank);
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
  std::int64_t count() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  std::string to_string() const;  // "[4, 256, 768]"
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t count() const { return shape.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  std::int64_t dim(int i) const { return shape[i]; }
  explicit operator bool() const { return data != nullptr; }

  // Rows when every dimension but the innermost is folded into one.
  std::int64_t rows() const { return shape.rank() == 0 ? 1 : count() / shape[-1]; }
  std::int64_t columns() const { return shape.rank() == 0 ? 1 : shape[-1]; }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }

  Tensor reshaped(Shape to) const {
    assert(to.count() == count());
    return {data, dtype, to};
  }
  // Rows [first, first + n) of the folded [rows, columns] view.
  Tensor row_range(std::int64_t first, std::int64_t n) const {
    auto* start =
        static_cast<std::byte*>(data) + static_cast<std::size_t>(first * columns()) * size_of(dtype);
    return {start, dtype, {n, columns()}};
  }
};

}  // namespace shoal
