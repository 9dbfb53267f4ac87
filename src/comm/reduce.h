// Sums and maxima over ranks, of memory that this process can read.
#pragma once

#include <span>

#include "comm/communicator.h"

namespace shoal {

// Every outs[o][first_out + i] becomes the reduction of all xs[r][first_x + i], i < count, in the order of
// xs, of which there are two at least; bf16 in float32, rounded once. An out may be the same elements as one
// of the xs. A NaN anywhere gives NaN. dtype: f32, bf16, f64, i32.
void reduce(std::span<std::byte* const> outs, std::int64_t first_out, std::span<const std::byte* const> xs,
            std::int64_t first_x, std::int64_t count, DType dtype, ReduceOp op);

}  // namespace shoal
