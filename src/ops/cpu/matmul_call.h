// The arguments of a matrix product.
#pragma once

#include "core/tensor.h"

namespace shoal::cpu {

// c [M, N] (+)= op(a) [M, K] . op(b) [K, N] + bias [N], where op may transpose. c may be f32 or, when
// a is bf16, bf16.
struct MatmulCall {
  Tensor c, a, b, bias;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;

  std::int64_t k() const { return transpose_a ? a.rows() : a.columns(); }
};

}  // namespace shoal::cpu
