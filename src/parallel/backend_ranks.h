// The exchange between ranks of tensors in the memory of their backends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "core/error.h"
#include "ops/cpu/cpu.h"
#include "ops/kernels.h"

namespace shoal {

// The path between the GPUs of ranks: over NCCL if it is available, over NCCL or an error, or always through
// the host's memory.
enum class GpuExchange : std::uint8_t { automatic, nccl, host };

// GpuExchange::nccl was asked for. The message is the reason why NCCL cannot be used.
struct NcclUnavailable : UserError {
  using UserError::UserError;
};

struct BackendRanks {
  std::unique_ptr<Communicator> ranks;
  // "NCCL 2.28.9", "through the host's memory, since ranks 0 and 1 have the same GPU"; empty if there is one
  // rank, or backends use the host's memory.
  std::string how;
};

// The highest level of the CPU's kernels that every rank's processor has, since bits depend on it. Rank 0
// says where the processors differ. Collective.
CpuLevel common_cpu_level(Communicator& ranks);

// A communicator over the group of `host`, for tensors in the host's memory and in the backend's. Collective;
// all ranks choose the same path. NCCL needs a GPU of its own for every rank. Throws NcclUnavailable.
BackendRanks connect_backends(Backend& backend, Communicator& host,
                              GpuExchange exchange = GpuExchange::automatic);

}  // namespace shoal
