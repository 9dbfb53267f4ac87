// One process at a time in a run's directory.
#pragma once

#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/file.h"

namespace shoal {

// Another process holds the run's directory; the message names it.
struct RunInUse : UserError {
  using UserError::UserError;
};

// Holds RUN/.lock (flock) as long as it lives; the system releases it when the process ends in whatever way.
// Creates the run's directory where needed. Throws RunInUse, and UserError when it cannot be created.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);

  // The session that was begun last, by any process; "" if there was none, or it was discarded.
  const std::string& last_session() const { return session_; }
  // Begins a new session. Its name, one line, stays in the file after the process has ended. Throws UserError
  // when it cannot be written.
  void begin_session(const std::string& session);

 private:
  bool write() const;

  std::filesystem::path path_;
  FileDescriptor file_;
  std::string session_;
};

// Says, on any rank, that the last session's states in memory led to a failure, on whatever hosts they are.
// A lock file that cannot be written leaves them usable.
void discard_session(const std::filesystem::path& run);

// Whether a process holds the lock. Needs no right to write, and changes nothing.
bool run_in_use(const std::filesystem::path& run);

// The holder of the lock by the lock's file, "process 123 on HOST"; "" when there is no such file.
std::string lock_holder(const std::filesystem::path& run);

}  // namespace shoal
