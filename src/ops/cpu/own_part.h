#pragma once

#include <cstdint>

#include "ops/cpu/growing_memory.h"

namespace shoal::cpu {

// The part of an operand that a thread has packed for itself: rows of the left one, or columns of the right
// one.
struct OwnPart {
  GrowingMemory memory;
  std::int64_t packed = -1;  // the number of the part in its block; -1: none
};

}  // namespace shoal::cpu
