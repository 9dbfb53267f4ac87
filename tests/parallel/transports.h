// Ranks in threads, over shared memory or over the MPI engine with a network in memory.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/fake_transport.h"
#include "comm/messages/run.h"
#include "comm/world.h"
#include "core/error.h"

namespace shoal::test {

enum class Transport { threads, mpi };

inline const char* name_of(Transport transport) {
  return transport == Transport::threads ? "threads" : "mpi";
}

// Throws the first rank's error that is not StoppedByPeer.
inline void run_over(Transport transport, const WorldOptions& options, const RankBody& body) {
  if (transport == Transport::threads) return run_threads(options, body);
  FakeNetwork network(options.ranks);
  std::exception_ptr failure;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < options.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        FakeTransport sockets(network, rank);
        try {
          messages::run_rank(sockets, options, body);
        } catch (const StoppedByPeer&) {
        } catch (...) {
          const std::lock_guard lock(mutex);
          failure = std::current_exception();
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace shoal::test
