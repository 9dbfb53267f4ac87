// The sizes of a rank's kernels in training; a backend's scratch memory depends on them.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace shoal {

struct KernelSizes {
  std::int64_t batch = 0, positions = 0;  // of a micro-batch
  std::int64_t heads = 0, head_size = 0;
  std::int64_t columns = 0;                                // of the widest activation
  std::int64_t channels = 0, classes = 0, logit_rows = 0;  // of the stream; of a chunk of logits
  DType compute = DType::f32, gradients = DType::f32;
  bool dropout = false, ordered = false;  // the latter: BackendOptions::ordered
};

}  // namespace shoal
