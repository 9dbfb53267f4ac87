// Reductions over the buffers of several ranks, in memory that this process can read.
#pragma once

#include <span>

#include "comm/communicator.h"

namespace shoal {

// Writes to every outs[o][first_out + i] the reduction of all xs[r][first_x + i], i < count, in the order of
// xs. xs has at least two entries. bf16 is reduced in float32 and rounded once. An out may be one of the xs.
// A NaN in any input gives NaN. dtype: f32, bf16, f64, i32; throws Error for f16.
void reduce(std::span<std::byte* const> outs, std::int64_t first_out, std::span<const std::byte* const> xs,
            std::int64_t first_x, std::int64_t count, DType dtype, ReduceOp op);

}  // namespace shoal
