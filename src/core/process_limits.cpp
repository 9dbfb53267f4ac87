#include "core/process_limits.h"

#include <fmt/format.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <limits>
#include <new>
#include <system_error>

#include "core/text.h"

namespace shoal {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double address_space_limit() {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<double>(limit.rlim_cur) : kNoLimit;
}

// ": this process may have 1.0 GiB (ulimit -v)"
std::string under_limit() {
  const double limit = address_space_limit();
  return limit == kNoLimit ? "" : fmt::format(": this process may have {} (ulimit -v)", format_bytes(limit));
}

}  // namespace

std::string message_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "out of memory" + under_limit();
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system && system->code() == std::errc::resource_unavailable_try_again) {
    return fmt::format("the system starts no more threads (ulimit -u), or has no memory for them{}",
                       under_limit());
  }
  return error.what();
}

double address_space_left() {
  const double limit = address_space_limit();
  if (limit == kNoLimit) return limit;
  double pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return limit - pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double thread_stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (::pthread_getattr_default_np(&attributes) != 0) return 0;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return static_cast<double>(bytes);
}

void save_address_space() {
  if (address_space_limit() != kNoLimit) ::mallopt(M_ARENA_MAX, 1);
}

}  // namespace shoal
