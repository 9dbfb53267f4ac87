#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

constexpr const char* kLockName = ".lock";

// run_in_use() shares the lock for less than this while it looks.
constexpr double kMomentOfReaders = 0.2;  // seconds

// Returns false, with the reason in errno, where the lock cannot be had in so many seconds.
bool lock_within(const FileDescriptor& file, double seconds) {
  const Stopwatch waiting;
  while (!try_lock(file)) {
    if (errno != EWOULDBLOCK) return false;
    if (waiting.seconds() > seconds) {
      errno = EWOULDBLOCK;
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

std::string this_process() { return fmt::format("process {} on {}", ::getpid(), host_name()); }

}  // namespace

RunLock::RunLock(const fs::path& run) {
  std::error_code error;
  fs::create_directories(run, error);
  if (error) fail_user("cannot create the run directory {}: {}", run.string(), error.message());

  const fs::path path = run / kLockName;
  file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file_) {
    fail_user("cannot write to the run directory {}: {}", run.string(),
              std::generic_category().message(errno));
  }
  if (!lock_within(file_, kMomentOfReaders)) {
    if (errno != EWOULDBLOCK) {
      fail_user("cannot lock {}: {}", path.string(), std::generic_category().message(errno));
    }
    const auto holder = lock_holder(run);
    throw RunInUse(fmt::format("the run directory {} is in use by {}", run.string(),
                               holder.empty() ? "another process" : holder));
  }
  // The holder is only for the message, so a full disk does no harm here.
  const std::string text = this_process();
  if (::ftruncate(file_.get(), 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(file_.get(), text.data(), text.size(), 0);
    ::fsync(file_.get());  // other hosts look for it
  }
}

bool wait_for_run_lock(const fs::path& run, double seconds) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_RDWR | O_CLOEXEC));
  return !file || lock_within(file, seconds);
}

bool run_in_use(const fs::path& run) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  return file && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::string lock_holder(const fs::path& run) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t size = !file ? 0 : ::pread(file.get(), text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

}  // namespace shoal
