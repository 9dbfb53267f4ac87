// One process at a time in a run's directory.
#pragma once

#include <filesystem>
#include <string>

#include "core/file.h"

namespace shoal {

// Holds RUN/.lock (flock) as long as it lives; the system releases it when the process ends in whatever way.
// Creates the run's directory where needed. Throws UserError naming the process that holds it, or why it
// cannot be created.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);

 private:
  FileDescriptor file_;
};

// The holder of the lock by the lock's file, "process 123 on HOST"; "" when there is no such file.
std::string lock_holder(const std::filesystem::path& run);

}  // namespace shoal
