// How ranks exchange what is in the memory of their backends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "ops/kernels.h"

namespace shoal {

// The path of GPUs' memory between ranks: over NCCL where it is available, over NCCL or an error, or always
// through the host's memory.
enum class GpuExchange : std::uint8_t { automatic, nccl, host };

struct BackendRanks {
  std::unique_ptr<Communicator> ranks;
  // "NCCL 2.28.9", "through the host's memory, since ranks 0 and 1 have the same GPU"; empty where memory is
  // the host's, or there is one rank.
  std::string how;
};

// The group of `host`, for tensors in the host's memory and in the backend's. Collective, and of one kind on
// all ranks. NCCL wants a GPU of its own for every rank. Throws UserError that says why when it is asked for
// and cannot be had.
BackendRanks connect_backends(Backend& backend, Communicator& host,
                              GpuExchange exchange = GpuExchange::automatic);

}  // namespace shoal
