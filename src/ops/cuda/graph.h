// CUDA graphs: the kernels that a stream captured, to be launched again as a whole.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "ops/device.h"

namespace shoal::cuda {

void begin_capture(cudaStream_t stream);
// Throws Error when something since begin_capture() cannot be captured. The stream must outlive the graph.
std::unique_ptr<CapturedGraph> end_capture(cudaStream_t stream);

}  // namespace shoal::cuda
