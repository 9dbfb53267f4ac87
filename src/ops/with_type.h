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

// Calls f.template operator()<T, S>() with the types of the computation and of the residual stream, which is
// float32 or the same.
template <typename F>
void with_types(DType compute, DType stream, F&& f) {
  if (compute != DType::bf16) {
    f.template operator()<float, float>();
  } else if (stream == DType::bf16) {
    f.template operator()<bfloat16, bfloat16>();
  } else {
    f.template operator()<bfloat16, float>();
  }
}

}  // namespace shoal
