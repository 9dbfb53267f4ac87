#include "checkpoint/run_lock.h"

#include <fcntl.h>
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
  if (!try_lock(file_)) {
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
  const Stopwatch waiting;
  while (true) {
    const FileDescriptor file(::open((run / kLockName).c_str(), O_RDWR | O_CLOEXEC));
    if (!file || try_lock(file)) return true;
    if (waiting.seconds() > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::string lock_holder(const fs::path& run) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t size = !file ? 0 : ::pread(file.get(), text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

}  // namespace shoal
