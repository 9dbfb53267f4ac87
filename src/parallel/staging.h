// Collectives on memory that only the backend can reach, by a communicator that works on the host's: what
// goes out is copied to the host when a collective begins, what came in is copied back when it is waited
// for. Tensors in host memory pass as they are; a rank that is alone has nothing to send. The results are those of the communicator, bit for bit.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "ops/backend.h"

namespace shoal {

std::unique_ptr<Communicator> make_staging_communicator(Backend& backend, Communicator& host);

}  // namespace shoal
