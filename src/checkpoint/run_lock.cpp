#include "checkpoint/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <sstream>
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
constexpr std::string_view kDiscarded = "discarded";

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

// The contents of the lock file, a line each, and "discarded" where the session was. A process that is killed
// while it writes may leave the end of an older, longer text behind them: a new session has nothing to lose.
struct LockText {
  std::string holder, session;
};
LockText read_lock(const FileDescriptor& file) {
  std::array<char, 512> bytes{};
  const ssize_t size = ::pread(file.get(), bytes.data(), bytes.size(), 0);
  std::istringstream lines(std::string(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))));
  LockText text;
  std::getline(lines, text.holder);
  std::getline(lines, text.session);
  std::string word;
  if (lines >> word && word == kDiscarded) text.session.clear();
  return text;
}

std::string this_process() { return fmt::format("process {} on {}", ::getpid(), host_name()); }

}  // namespace

RunLock::RunLock(const fs::path& run) {
  std::error_code error;
  fs::create_directories(run, error);
  if (error) fail_user("cannot create the run directory {}: {}", run.string(), error.message());

  path_ = run / kLockName;
  file_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file_) {
    fail_user("cannot write to the run directory {}: {}", run.string(),
              std::generic_category().message(errno));
  }
  if (!lock_within(file_, kMomentOfReaders)) {
    if (errno != EWOULDBLOCK) {
      fail_user("cannot lock {}: {}", path_.string(), std::generic_category().message(errno));
    }
    const auto holder = lock_holder(run);
    throw RunInUse(fmt::format("the run directory {} is in use by {}", run.string(),
                               holder.empty() ? "another process" : holder));
  }
  session_ = read_lock(file_).session;
  [[maybe_unused]] const bool written = write();  // only for the message, so a full disk does no harm here
}

void RunLock::begin_session(const std::string& session) {
  session_ = session;
  if (!write()) fail_user("cannot write {}: {}", path_.string(), std::generic_category().message(errno));
}

bool RunLock::write() const {
  const auto text = this_process() + "\n" + session_ + "\n";
  const auto size = static_cast<ssize_t>(text.size());
  return ::pwrite(file_.get(), text.data(), text.size(), 0) == size && ::ftruncate(file_.get(), size) == 0 &&
         ::fsync(file_.get()) == 0;  // other hosts look for it
}

void discard_session(const fs::path& run) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file) return;
  const auto line = std::string(kDiscarded) + "\n";
  [[maybe_unused]] const auto written = ::write(file.get(), line.data(), line.size());
}

bool run_in_use(const fs::path& run) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  return file && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::string lock_holder(const fs::path& run) {
  const FileDescriptor file(::open((run / kLockName).c_str(), O_RDONLY | O_CLOEXEC));
  return file ? read_lock(file).holder : "";
}

}  // namespace shoal
