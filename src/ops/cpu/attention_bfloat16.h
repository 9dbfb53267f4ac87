// Attention's products by vdpbf16ps: probabilities and gradients of scores are rounded to bfloat16 before
// they are multiplied, as on GPUs; scores, sums and softmax stay in float32.
#pragma once

#include "ops/cpu/attention_tiles.h"

#ifdef __AVX512BF16__

namespace shoal::cpu {

template <>
std::int64_t HeadKernels<bfloat16>::forward_scratch(const HeadShape& shape);
template <>
std::int64_t HeadKernels<bfloat16>::backward_scratch(const HeadShape& shape);
template <>
void HeadKernels<bfloat16>::forward(const HeadForward<bfloat16>& head, const HeadShape& shape,
                                    const DropoutTile& dropout, float* scratch);
template <>
void HeadKernels<bfloat16>::backward(const HeadBackward<bfloat16>& head, const HeadShape& shape,
                                     const DropoutTile& dropout, float* scratch);

}  // namespace shoal::cpu

#endif
