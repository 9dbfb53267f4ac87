// A library for LD_PRELOAD, below a program that knows nothing of it: calls of the system fail, and the clock
// runs backwards, as the environment says.
//
//   SHOAL_FAILING_CALL="CALL PART ERRNO FIRST TIMES": TIMES calls of CALL fail with ERRNO, from the FIRST on
//   (1, 2, ...) of those whose path contains PART; a negative ERRNO is a signal that the process gets before
//   the call. SHOAL_FAILING_CLOCK=SECONDS: the time of day is so much earlier at each call than at the one
//   before.
//
// It also reports a change of the locale on standard error.
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace {

struct Plan {
  std::string call, part;
  int error = 0, first = 0, times = 0;
  double clock = 0;  // seconds per call
  Plan() {
    if (const char* text = std::getenv("SHOAL_FAILING_CALL"))
      std::istringstream(text) >> call >> part >> error >> first >> times;
    if (const char* text = std::getenv("SHOAL_FAILING_CLOCK")) clock = std::strtod(text, nullptr);
  }
};

const Plan& plan() {
  static const Plan read;
  return read;
}

// Whether this call is one that fails, with the reason in errno. Raises the signal of one that gets a signal.
bool fails(const char* call, const std::string& path) {
  static std::atomic<int> calls = 0;
  if (plan().call != call || path.find(plan().part) == std::string::npos) return false;
  const int number = ++calls;
  if (number < plan().first || number >= plan().first + plan().times) return false;
  if (plan().error < 0) return std::raise(-plan().error) != 0;
  errno = plan().error;
  return true;
}

bool fails(const char* call, int file) {
  if (plan().call != call) return false;
  std::array<char, 4096> path{};
  const auto size =
      ::readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), path.data(), path.size() - 1);
  return size > 0 && fails(call, std::string(path.data()));
}

template <typename Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define REAL(name) real(&::name, #name)

extern "C" {

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const auto mode = va_arg(more, mode_t);
  va_end(more);
  return fails("open", path) ? -1 : REAL(open)(path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  return fails("open", path) ? nullptr : REAL(fopen)(path, mode);
}

FILE* fopen64(const char* path, const char* mode) { return ::fopen(path, mode); }

ssize_t read(int file, void* to, size_t bytes) {
  return fails("read", file) ? -1 : REAL(read)(file, to, bytes);
}

ssize_t write(int file, const void* from, size_t bytes) {
  return fails("write", file) ? -1 : REAL(write)(file, from, bytes);
}

ssize_t pwrite(int file, const void* from, size_t bytes, off_t at) {
  return fails("write", file) ? -1 : REAL(pwrite)(file, from, bytes, at);
}

int fflush(FILE* file) {
  return file != nullptr && fails("write", ::fileno(file)) ? EOF : REAL(fflush)(file);
}

int fsync(int file) { return fails("fsync", file) ? -1 : REAL(fsync)(file); }

int flock(int file, int operation) { return fails("flock", file) ? -1 : REAL(flock)(file, operation); }

int rename(const char* from, const char* to) { return fails("rename", to) ? -1 : REAL(rename)(from, to); }

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return fails("rename", to) ? -1 : REAL(renameat2)(from_folder, from, to_folder, to, flags);
}

int mkdir(const char* path, mode_t mode) { return fails("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }

int symlink(const char* target, const char* path) {
  return fails("symlink", path) ? -1 : REAL(symlink)(target, path);
}

int unlink(const char* path) { return fails("unlink", path) ? -1 : REAL(unlink)(path); }

int clock_gettime(clockid_t clock, timespec* time) {
  static std::atomic<int> calls = 0;
  const int result = REAL(clock_gettime)(clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec -= static_cast<time_t>(plan().clock * ++calls);
  return result;
}

char* setlocale(int category, const char* name) noexcept {
  if (name != nullptr) std::fputs("setlocale was called\n", stderr);
  return REAL(setlocale)(category, name);
}

}  // extern "C"
