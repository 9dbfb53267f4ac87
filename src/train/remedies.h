// Errors of the rooms below, with a remedy: the keys of the config and the commands that matter.
#pragma once

namespace shoal {

// To be called in a catch block: throws the current exception again. Adds a remedy where it says that a
// backend, its memory, NCCL, a run's directory or a data folder cannot be used.
[[noreturn]] void rethrow_with_remedy();

// Calls `body` and returns what it returns, with remedies in its errors.
template <class Body>
decltype(auto) with_remedy(Body&& body) {
  try {
    return body();
  } catch (...) {
    rethrow_with_remedy();
  }
}

}  // namespace shoal
