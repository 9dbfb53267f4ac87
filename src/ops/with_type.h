// The C++ type of a tensor's elements.
#pragma once

#include "core/dtype.h"

namespace shoal {

// Calls f.template operator()<T>() with T the C++ type of a float32 or bfloat16 tensor.
template <typename F>
void with_type(DType dtype, F&& f) {
  if (dtype == DType::bf16) {
    f.template operator()<bfloat16>();
  } else {
    f.template operator()<float>();
  }
}

}  // namespace shoal
