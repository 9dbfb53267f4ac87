// Collectives on device memory by a communicator that works on host memory: inputs are copied to the host
// when a collective begins, outputs are copied back when its request is waited for. Tensors in host memory
// pass through; a group of one rank sends nothing. Results are those of the communicator, bit for bit.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "ops/kernels.h"

namespace shoal {

std::unique_ptr<Communicator> make_staging_communicator(Backend& backend, Communicator& host);

}  // namespace shoal
