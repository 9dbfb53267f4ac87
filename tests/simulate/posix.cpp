#undef _FORTIFY_SOURCE  // it defines some of these functions itself
#include "simulate/posix.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstring>
#include <string>

#include "simulate/real.h"

namespace shoal::simulate {
namespace {

namespace fs = std::filesystem;

Disk* the_disk = nullptr;
Faults* the_faults = nullptr;

constexpr Time kBeginOfRealTime = from_seconds(1.8e9);  // in 2027

timespec to_timespec(Time time) { return {time / 1'000'000'000, time % 1'000'000'000}; }
Time to_time(const timespec& time) { return static_cast<Time>(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

// A moment of one of the system's clocks on the virtual clock.
Time on_virtual_clock(clockid_t clock, const timespec& time) {
  return to_time(time) - (clock == CLOCK_REALTIME ? kBeginOfRealTime : 0);
}

// A file of the disk, as long as a simulated thread changes it.
class FileCall {
 public:
  FileCall(const char* name, const fs::path& path) : scheduler_(Scheduler::current()), path_(path) {
    covered_ = scheduler_ && the_disk && path_.is_absolute() && the_disk->has(path_);
    if (covered_) possible_ = the_faults->at_file(fmt::format("{} {}", name, path_.filename().string()));
  }
  FileCall(const char* name, int file) : FileCall(name, path_of(file)) {}
  FileCall(const char* name, int folder, const char* file)
      : FileCall(name, folder == AT_FDCWD || *file == '/' ? fs::path(file) : path_of(folder) / file) {}

  explicit operator bool() const { return covered_; }
  const fs::path& path() const { return path_; }
  // Whether the disk has room; sets errno where it has not.
  bool has_room() const {
    if (!possible_) errno = ENOSPC;
    return possible_;
  }

 private:
  static fs::path path_of(int file) {
    if (!Scheduler::current() || !the_disk) return {};
    char path[PATH_MAX];
    const auto size = ::readlink(fmt::format("/proc/self/fd/{}", file).c_str(), path, sizeof path);
    return size < 0 ? fs::path() : fs::path(path, path + size);
  }

  Scheduler* scheduler_;
  fs::path path_;
  bool covered_ = false, possible_ = true;
};

template <typename Function>
void find(Function& function, const char* name, const char* version = nullptr) {
  void* found = version ? ::dlvsym(RTLD_NEXT, name, version) : nullptr;
  if (!found) found = ::dlsym(RTLD_NEXT, name);
  static_assert(sizeof found == sizeof function);
  std::memcpy(&function, &found, sizeof found);
}

Real find_all() {
  Real r{};
  find(r.pthread_create, "pthread_create");
  find(r.pthread_join, "pthread_join");
  find(r.pthread_mutex_lock, "pthread_mutex_lock");
  find(r.pthread_mutex_trylock, "pthread_mutex_trylock");
  find(r.pthread_mutex_unlock, "pthread_mutex_unlock");
  find(r.pthread_cond_wait, "pthread_cond_wait", "GLIBC_2.3.2");  // x86-64 has an older kind, too
  find(r.pthread_cond_timedwait, "pthread_cond_timedwait", "GLIBC_2.3.2");
  find(r.pthread_cond_clockwait, "pthread_cond_clockwait");
  find(r.pthread_cond_signal, "pthread_cond_signal", "GLIBC_2.3.2");
  find(r.pthread_cond_broadcast, "pthread_cond_broadcast", "GLIBC_2.3.2");
  find(r.sched_yield, "sched_yield");
  find(r.nanosleep, "nanosleep");
  find(r.clock_nanosleep, "clock_nanosleep");
  find(r.clock_gettime, "clock_gettime");
  find(r.exit_now, "_exit");
  find(r.getpid, "getpid");
  find(r.gethostname, "gethostname");
  find(r.open, "open");
  find(r.write, "write");
  find(r.pwrite, "pwrite");
  find(r.ftruncate, "ftruncate");
  find(r.fsync, "fsync");
  find(r.rename, "rename");
  find(r.renameat2, "renameat2");
  find(r.unlink, "unlink");
  find(r.unlinkat, "unlinkat");
  find(r.remove, "remove");
  find(r.rmdir, "rmdir");
  find(r.mkdir, "mkdir");
  find(r.symlink, "symlink");
  find(r.fopen, "fopen");
  return r;
}

int wait_for(pthread_cond_t* condition, pthread_mutex_t* mutex, Time deadline) {
  auto& scheduler = *Scheduler::current();
  ::pthread_mutex_unlock(mutex);
  const bool woken = scheduler.wait(condition, deadline);
  ::pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

int remove_with(const FileCall& call, const auto& remove) {
  if (!call) return remove();
  the_disk->about_to_remove(call.path());
  const int result = remove();
  if (result == 0) the_disk->removed(call.path());
  return result;
}

}  // namespace

const Real& real() {
  static const Real functions = find_all();
  return functions;
}

void take_over_files(Disk* disk, Faults* faults) {
  the_disk = disk;
  the_faults = faults;
}

}  // namespace shoal::simulate

using namespace shoal::simulate;  // NOLINT(google-build-using-namespace): below are the system's names

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().pthread_create(thread, attributes, body, argument);
  *thread = scheduler->create_thread(attributes, body, argument);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  if (auto* scheduler = Scheduler::current()) scheduler->join(thread);
  return real().pthread_join(thread, result);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().pthread_mutex_lock(mutex);
  scheduler->pass();
  int result = real().pthread_mutex_trylock(mutex);
  for (; result == EBUSY; result = real().pthread_mutex_trylock(mutex)) scheduler->wait(mutex);
  if (result == 0) scheduler->locked(mutex);
  return result;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  const int result = real().pthread_mutex_trylock(mutex);
  if (auto* scheduler = Scheduler::current(); scheduler && result == 0) scheduler->locked(mutex);
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  const int result = real().pthread_mutex_unlock(mutex);
  if (auto* scheduler = Scheduler::current()) scheduler->unlocked(mutex);
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!Scheduler::current()) return real().pthread_cond_wait(condition, mutex);
  return wait_for(condition, mutex, kNever);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  if (!Scheduler::current()) return real().pthread_cond_clockwait(condition, mutex, clock, until);
  return wait_for(condition, mutex, on_virtual_clock(clock, *until));
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  if (!Scheduler::current()) return real().pthread_cond_timedwait(condition, mutex, until);
  return wait_for(condition, mutex, on_virtual_clock(CLOCK_REALTIME, *until));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().pthread_cond_signal(condition);
  scheduler->wake(condition, false);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().pthread_cond_broadcast(condition);
  scheduler->wake(condition);
  return 0;
}

int sched_yield() noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().sched_yield();
  scheduler->pass(1);
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().nanosleep(time, left);
  scheduler->sleep_until(scheduler->now() + to_time(*time));
  return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().clock_nanosleep(clock, flags, time, left);
  scheduler->sleep_until((flags & TIMER_ABSTIME) != 0 ? on_virtual_clock(clock, *time)
                                                      : scheduler->now() + to_time(*time));
  return 0;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID) {
    return real().clock_gettime(clock, time);
  }
  scheduler->tick();
  *time = to_timespec(scheduler->now() + (clock == CLOCK_REALTIME ? kBeginOfRealTime : 0));
  return 0;
}

void _exit(int code) {
  if (auto* scheduler = Scheduler::current()) {
    if (code != 0) scheduler->process().error = "it ended by force, and said why on standard error";
    scheduler->end(scheduler->process(), code);
  }
  real().exit_now(code);
  __builtin_unreachable();
}

pid_t getpid() noexcept {
  auto* scheduler = Scheduler::current();
  return scheduler ? 1000 + scheduler->process().rank : real().getpid();
}

int gethostname(char* name, std::size_t size) noexcept {
  auto* scheduler = Scheduler::current();
  if (!scheduler) return real().gethostname(name, size);
  const auto text = fmt::format("host{}", scheduler->process().host);
  if (text.size() >= size) return errno = ENAMETOOLONG, -1;
  std::memcpy(name, text.c_str(), text.size() + 1);
  return 0;
}

int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const auto mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if ((flags & O_ACCMODE) == O_RDONLY) return real().open(path, flags, mode);
  const FileCall call("open", path);
  if (call && !call.has_room()) return -1;
  const int file = real().open(path, flags, mode);
  if (call && file >= 0) the_disk->opened(call.path(), (flags & O_TRUNC) != 0);
  return file;
}

std::FILE* fopen(const char* path, const char* mode) {
  if (*mode == 'r') return real().fopen(path, mode);
  const FileCall call("fopen", path);
  if (call && !call.has_room()) return nullptr;
  std::FILE* file = real().fopen(path, mode);
  if (call && file) the_disk->opened_stream(call.path());
  return file;
}
std::FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

// May write a part only, as the system may; who is killed before the next call has written that.
ssize_t write(int file, const void* data, std::size_t bytes) {
  const FileCall call("write", file);
  if (!call) return real().write(file, data, bytes);
  if (!call.has_room()) return -1;
  the_disk->changed(call.path());
  auto& random = Scheduler::current()->random();
  const bool all = bytes < 2 || random.chance(0.7);
  return real().write(
      file, data,
      all ? bytes : 1 + static_cast<std::size_t>(random.below(static_cast<std::int64_t>(bytes) - 1)));
}

ssize_t pwrite(int file, const void* data, std::size_t bytes, off_t at) {
  const FileCall call("pwrite", file);
  if (call && !call.has_room()) return -1;
  if (call) the_disk->changed(call.path());
  return real().pwrite(file, data, bytes, at);
}

int ftruncate(int file, off_t bytes) noexcept {
  const FileCall call("ftruncate", file);
  if (call) the_disk->changed(call.path());
  return real().ftruncate(file, bytes);
}

// The files lie in memory, so there is nothing to do but to wait. A checkpoint takes a dozen of these, one
// behind the other, while other ranks wait: together they stay below the deadline of a collective.
int fsync(int file) {
  const FileCall call("fsync", file);
  if (!call) return real().fsync(file);
  auto& scheduler = *Scheduler::current();
  auto& random = scheduler.random();
  const double seconds = random.share() * (random.chance(0.1) ? 0.2 : 2e-3);
  scheduler.sleep_until(scheduler.now() + from_seconds(seconds));
  the_disk->synced(call.path());
  return 0;
}

int rename(const char* from, const char* to) noexcept {
  const FileCall call("rename", from);
  if (!call) return real().rename(from, to);
  the_disk->about_to_remove(to);
  const int result = real().rename(from, to);
  if (result == 0) the_disk->renamed(call.path(), to);
  return result;
}

int renameat2(int folder, const char* one, int other_folder, const char* other, unsigned flags) noexcept {
  const FileCall call("swap", folder, one);
  const int result = real().renameat2(folder, one, other_folder, other, flags);
  if (call && result == 0) the_disk->swapped(call.path(), other);
  return result;
}

int unlink(const char* path) noexcept {
  return remove_with(FileCall("unlink", path), [&] { return real().unlink(path); });
}
int rmdir(const char* path) noexcept {
  return remove_with(FileCall("rmdir", path), [&] { return real().rmdir(path); });
}
int remove(const char* path) noexcept {
  return remove_with(FileCall("remove", path), [&] { return real().remove(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  return remove_with(FileCall("unlink", folder, path), [&] { return real().unlinkat(folder, path, flags); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  const FileCall call("mkdir", path);
  if (call && !call.has_room()) return -1;
  const int result = real().mkdir(path, mode);
  if (call && result == 0) the_disk->made_folder(call.path());
  return result;
}

int symlink(const char* target, const char* path) noexcept {
  const FileCall call("symlink", path);
  if (call && !call.has_room()) return -1;
  const int result = real().symlink(target, path);
  if (call && result == 0) the_disk->made_link(call.path(), target);
  return result;
}

}  // extern "C"
