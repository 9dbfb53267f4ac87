// Streams of the emulated GPU. They run their work as late as CUDA allows: when the host waits for it, when
// work that must run waits for its event, or when memory is freed. So a missing event or synchronisation
// changes results. Where SHOAL_EMULATED_ORDER is a number above 0 it also draws which streams run their work
// as soon as they can.
#pragma once

#include <driver_types.h>

#include <functional>

// A stream of this emulation, or of the one in tests/comm/nccl.
struct CUstream_st {
  virtual ~CUstream_st() = default;
  // Blocks until all work is done.
  virtual void finish() = 0;
};

namespace shoal::emulated {

// Queues work that takes so much emulated time, or keeps it while the stream is captured.
void queue(cudaStream_t stream, std::function<void()> work, float milliseconds = 0);
// Whether the stream is being captured. If so, the capture fails, as with CUDA after a forbidden call.
bool breaks_capture(cudaStream_t stream);
// The same for any stream.
bool breaks_captures();
void finish_all();

}  // namespace shoal::emulated
