// A slice: the elements of a named tensor that a shard holds. Slices of one cut are assembled from slices of
// another. Tensor parallelism cuts a box out of a tensor, ZeRO cuts a flat range out of that box, so a slice
// is both. Load-time resharding follows PyTorch's Distributed Checkpoint and ByteCheckpoint (2024).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace shoal {

// Large tensors are read and written in pieces of so many elements, which bounds memory.
inline constexpr std::int64_t kPieceElements = 1 << 20;

// The elements [flat_begin, flat_end) of the row-major flattening of the box (offset, shape) of a global
// tensor.
struct TensorSlice {
  std::string name;
  DType dtype = DType::f32;
  Shape global_shape, offset, shape;
  std::int64_t flat_begin = 0, flat_end = 0;

  std::int64_t count() const { return flat_end - flat_begin; }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  bool covers_box() const { return count() == shape.count(); }
  // The shape of the slice in a file: the box where it is whole, else one dimension.
  Shape stored_shape() const { return covers_box() ? shape : Shape{count()}; }
  bool operator==(const TensorSlice&) const = default;
};

TensorSlice whole_slice(std::string name, DType dtype, const Shape& global_shape);
// Rows [begin, begin + size) along `dim`.
TensorSlice box_slice(std::string name, DType dtype, const Shape& global_shape, int dim, std::int64_t begin,
                      std::int64_t size);
// A slice without its tensor's name and type, as text: "[0, 768] + [1024, 768], elements 0 to 4096".
std::string to_string(const TensorSlice& slice);

// The fault of a slice that comes from outside (ranks, bounds, sizes that overflow); "" when it is
// sound.
std::string fault_of(const TensorSlice& slice);

// shape.count() * element_bytes; -1 when a dimension is negative or the product does not fit.
std::int64_t checked_bytes(const Shape& shape, std::size_t element_bytes);

// `count` elements from element `from` of source number `source` to element `to` of the target, both relative
// to the start of what the slice holds.
struct CopyRun {
  std::int64_t to = 0, from = 0, count = 0;
  std::size_t source = 0;
};

struct CopyPlan {
  std::vector<CopyRun> runs;       // ordered by `to`; no element twice
  std::int64_t missing = 0;        // elements of the target that no source holds
  std::int64_t first_missing = 0;  // the first of them, relative to the start of the target
};

// Sources must be slices of the target's tensor; all slices must be sound. Where sources overlap, one of them
// is used.
CopyPlan plan_copy(const TensorSlice& target, std::span<const TensorSlice> sources);

// Coordinates in the global tensor of element `i` of what the slice holds: "[3, 0]".
std::string coordinates(const TensorSlice& slice, std::int64_t i);

}  // namespace shoal
