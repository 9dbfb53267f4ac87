// Point-to-point messages of bytes, sent and received without blocking: all that the collectives of this
// folder need. Implemented by a module for each MPI library (comm/mpi), and by threads in tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::messages {

// Messages of the two channels never meet.
enum class Channel : std::uint8_t { data, control };

struct Handle {  // of a message under way
  std::uintptr_t bits = 0;
};

enum class State : std::uint8_t { pending, done, failed };

constexpr int kAnyRank = -1;

// All calls are made by one thread. Those that can fail return false (or State::failed); error() says why.
class Transport {
 public:
  virtual bool start() = 0;   // MPI_Init_thread
  virtual void finish() = 0;  // MPI_Finalize: with no data under way; waits for the other ranks
  virtual const char* error() const = 0;

  // From here on: after start().
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::int64_t largest_tag() const = 0;
  virtual const char* version() const = 0;  // "Open MPI v4.1.4, ..."

  virtual bool send(Channel channel, const void* data, int bytes, int to, int tag, Handle& handle) = 0;
  virtual bool receive(Channel channel, void* data, int bytes, int from, int tag, Handle& handle) = 0;
  virtual State test(Handle& handle) = 0;
  virtual void cancel(Handle& handle) = 0;  // of a receive

 protected:
  ~Transport() = default;  // lives as long as the process
};

}  // namespace shoal::messages
