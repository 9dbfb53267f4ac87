// What is captured of a stream, as a graph that can be launched again and again.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "ops/backend.h"

namespace shoal::cuda {

void begin_capture(cudaStream_t stream);
// Throws Error where something between the two cannot be captured. The stream must outlive the recording.
std::unique_ptr<RecordedWork> end_capture(cudaStream_t stream);

}  // namespace shoal::cuda
