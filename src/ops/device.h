// A device: memory, copies to and from the host, streams, events and graph capture, in CUDA's words. On the
// host itself every call but Backend::adamw_later completes before it returns, so streams and other events do
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace shoal {

// The GPU of a backend, for other libraries that work on it.
struct Gpu {
  int number = -1;         // CUDA's, in this process; -1 without a GPU
  std::string place = "";  // PCI bus id
  void* stream = nullptr;  // the cudaStream_t of the backend's kernels
};

// Kernels that were captured once and can be launched again as a whole.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  virtual void replay() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual Gpu gpu() const { return {}; }
  // FLOP/s of multiply-adds on operands of this type in registers, measured for about 0.1 s; 0 if unknown.
  virtual double measure_peak_flops(DType) { return 0; }
  // Bytes per second that are read from memory, measured within a second or two; 0 if unknown.
  virtual double measure_read_bandwidth() { return 0; }

  // --- memory: at least 64-byte aligned, zeroed, owned by the caller. Throws OutOfDeviceMemory
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* data, std::size_t bytes) = 0;
  // Both are ordered with the kernels. copy_to_host() returns when the copy is complete, copy_from_host()
  // when `host` may change.
  virtual void copy_to_host(void* host, const Tensor& from) = 0;
  virtual void copy_from_host(const Tensor& to, const void* host) = 0;
  // Blocks the host until all streams are empty.
  virtual void synchronize() = 0;
  // Whether the host cannot access this address.
  virtual bool is_device_memory(const void*) const { return false; }

  // --- streams. Work is queued on three streams: kernels (and the copies above), copies in, copies out. Each
  // runs in order; events order one after another.
  enum class Stream : std::uint8_t { kernels, copy_in, copy_out };
  // Host memory for copy_in and copy_out: pinned, zeroed, 64-byte aligned. Throws OutOfPinnedMemory
  // (ops/errors.h).
  virtual void* allocate_host(std::size_t bytes) { return allocate(bytes); }
  virtual void release_host(void* data, std::size_t bytes) { release(data, bytes); }
  // Both may return before the copy is complete.
  virtual void copy_in(const Tensor& to, const void* host) { copy_from_host(to, host); }
  virtual void copy_out(void* host, const Tensor& from) { copy_to_host(host, from); }

  // --- events. An event that has not been recorded is complete.
  class Event {
   public:
    virtual ~Event() = default;
  };
  virtual std::unique_ptr<Event> make_event() { return std::make_unique<Event>(); }
  // The event completes with the work that is queued on the stream now.
  virtual void record(Event&, Stream) {}
  // Work that is queued on the stream from now on starts after the event.
  virtual void wait(Stream, const Event&) {}
  // Blocks the host until the event is complete.
  virtual void synchronize(const Event&) {}

  // --- graph capture. Kernels that are launched between begin and end are captured, not executed, with the
  // addresses of their tensors: no copies from or to the host, no sizes that are new to the device. Scalars
  // that change are read in device memory (AdamWSettings::scalars, Dropout::step).
  virtual bool can_capture() const { return false; }
  virtual void begin_capture() {}
  virtual std::unique_ptr<CapturedGraph> end_capture() { return nullptr; }
};

}  // namespace shoal
