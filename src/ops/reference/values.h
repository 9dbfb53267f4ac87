// Tensors as vectors of doubles: every reference kernel reads its inputs, computes in double, and rounds once
// on writing.
#pragma once

#include <span>
#include <vector>

#include "core/tensor.h"

namespace shoal::reference {

using Values = std::vector<double>;

// x f64, f32, bf16 or in 8 bits (int8.h); empty for an empty tensor.
Values read(const Tensor& x);
// Rounds to the type of x; as many values as x has elements.
void write(const Tensor& x, std::span<const double> values);

}  // namespace shoal::reference
