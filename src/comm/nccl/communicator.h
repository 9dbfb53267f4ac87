// Implementation of make_nccl_communicator(); see comm/nccl/nccl.h.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace shoal::nccl {

std::unique_ptr<Communicator> make_communicator(std::unique_ptr<Communicator> inner, int number,
                                                void* stream);

}  // namespace shoal::nccl
