// Errors of the backend, with the keys of the config that matter.
#pragma once

namespace shoal {

// To be called in a catch block: throws the current exception again. Where it says that a backend, its memory
// or NCCL is not available, adds the keys of the config that choose it and a remedy.
[[noreturn]] void rethrow_with_keys();

}  // namespace shoal
