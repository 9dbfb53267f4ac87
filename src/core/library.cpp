#include "core/library.h"

#include <fmt/format.h>
#include <spdlog/version.h>

namespace shoal {

std::vector<Library> core_libraries() {
  return {
      {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100),
       "text"},
      {"spdlog", fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH), "the log"}};
}

}  // namespace shoal
