#include "ops/cuda/emulated/log.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>

#include "ops/cuda/emulated/symbols.h"

namespace shoal::emulated {
namespace {

const char* path() {
  static const char* given = std::getenv("SHOAL_EMULATED_LOG");
  return given;
}

void write(const std::string& line) {
  static std::mutex mutex;
  static std::ofstream file(path(), std::ios::app);
  const std::lock_guard lock(mutex);
  file << line << '\n';
}

}  // namespace

bool logs() { return path() != nullptr; }

void log_launch(const Launch& launch, std::size_t asked) {
  if (!logs()) return;
  const dim3 grid = launch.grid;
  write(fmt::format("launch {} {} {} {} {} {} {}", mangled_name(launch.kernel), grid.x, grid.y, grid.z,
                    launch.block.x * launch.block.y * launch.block.z, launch.shared, asked));
}

int next_read() {
  static std::atomic<int> count = 0;
  return count++;
}

// FNV-1a
void log_read(int number, const void* data, std::size_t bytes) {
  if (!logs()) return;
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::size_t i = 0; i < bytes; ++i) {
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  }
  write(fmt::format("read {} {} {:016x}", number, bytes, hash));
}

}  // namespace shoal::emulated
