// Errors of backends, with types of their own, so that a caller can add a remedy.
#pragma once

#include "core/error.h"

namespace shoal {

// The CUDA backend cannot be used; the message is the reason.
struct CudaUnavailable : UserError {
  using UserError::UserError;
};

// The device's memory is exhausted; the message has the bytes that are needed and free.
struct OutOfDeviceMemory : Error {
  using Error::Error;
};

// The host's memory cannot be pinned; the message has the bytes and the reason.
struct OutOfPinnedMemory : UserError {
  using UserError::UserError;
};

}  // namespace shoal
