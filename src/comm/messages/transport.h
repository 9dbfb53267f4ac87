// Non-blocking point-to-point messages of bytes, the base of the collectives in this folder. Implemented by a
// module for each MPI library (comm/mpi), and by threads in tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::messages {

// A message is received only on the channel that it was sent on.
enum class Channel : std::uint8_t { data, control };

struct Handle {  // a running message
  std::uintptr_t bits = 0;
};

enum class State : std::uint8_t { pending, done, failed };

constexpr int kAnyRank = -1;

// All calls are made by one thread. A call that fails returns false or State::failed, and error() gives the
// reason.
class Transport {
 public:
  virtual bool start() = 0;   // MPI_Init_thread
  virtual void finish() = 0;  // MPI_Finalize: waits for the other ranks. No data message may be running.
  virtual const char* error() const = 0;

  // Callable after start():
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::int64_t largest_tag() const = 0;
  virtual const char* version() const = 0;  // "Open MPI v4.1.4, ..."

  virtual bool send(Channel channel, const void* data, int bytes, int to, int tag, Handle& handle) = 0;
  virtual bool receive(Channel channel, void* data, int bytes, int from, int tag, Handle& handle) = 0;
  virtual State test(Handle& handle) = 0;
  virtual void cancel(Handle& handle) = 0;  // receives only

 protected:
  ~Transport() = default;  // never deleted through this class: a transport lives as long as the process
};

}  // namespace shoal::messages
