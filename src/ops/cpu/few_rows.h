// Products with few rows, those of generating text. They wait for the weights, which are read once.
#pragma once

#include "core/thread_team.h"
#include "ops/kernels.h"

namespace shoal::cpu {

// y x or f32 [R, N] = x x [R, K] . w x [N, K]^T + bias x [N] (bias may be empty), R at most kFewRows. The
// bits of a row do not depend on the other rows, nor on how many there are. With w in 8 bits a row of x is
// rounded to levels, of which the largest magnitude has 16383. `scratch` f32 [R, K] may be used where x is
// not f32, or w is in 8 bits.
void few_rows_product(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias, ThreadTeam& team,
                      float* scratch);

}  // namespace shoal::cpu
