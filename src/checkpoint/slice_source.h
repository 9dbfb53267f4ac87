// A source of slices of named tensors.
#pragma once

#include <cstddef>
#include <span>

#include "checkpoint/slice.h"

namespace shoal {

class SliceSource {
 public:
  virtual ~SliceSource() = default;

  // Fills `out` (slice.bytes()) with the elements of a slice, cut in any way. Throws UserError when there is
  // no such tensor, in that type and shape, or it is damaged.
  virtual void read(const TensorSlice& slice, std::span<std::byte> out) = 0;
};

}  // namespace shoal
