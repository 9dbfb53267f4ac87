#include "core/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/control_groups.h"

namespace shoal {
namespace {

std::string first_word(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  file >> text;
  return text;
}

// The least quota of this process's control groups: a container's limit of CPUs.
int quota_of_control_group() {
  int least = 0;
  const auto count = [&](const std::string& quota, const std::string& period) {
    if (const int cores = cores_of_quota(quota, period); cores > 0)
      least = least == 0 ? cores : std::min(least, cores);
  };
  for (const auto& group : control_groups("cpu")) {
    const auto file = group.folder + "/cpu.";
    if (group.second) {
      std::ifstream both(file + "max");
      std::string quota, period;
      both >> quota >> period;
      count(quota, period);
    } else {
      count(first_word(file + "cfs_quota_us"), first_word(file + "cfs_period_us"));
    }
  }
  return least;
}

}  // namespace

int cores_of_quota(const std::string& quota, const std::string& period) {
  const double share = std::strtod(quota.c_str(), nullptr), whole = std::strtod(period.c_str(), nullptr);
  return share > 0 && whole > 0 ? static_cast<int>(std::ceil(share / whole)) : 0;
}

std::vector<int> allowed_core_numbers() {
  cpu_set_t allowed;
  std::vector<int> numbers;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return numbers;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &allowed)) numbers.push_back(core);
  }
  return numbers;
}

int allowed_cores() {
  if (const auto numbers = allowed_core_numbers(); !numbers.empty()) return static_cast<int>(numbers.size());
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int usable_cores() {
  static const int quota = quota_of_control_group();
  const int allowed = allowed_cores();
  return quota > 0 ? std::min(allowed, quota) : allowed;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::int64_t cache_bytes(int level, const std::string& folder) {
  for (int index = 0;; ++index) {
    const auto cache = fmt::format("{}/index{}/", folder, index);
    const auto found = first_word(cache + "level");
    if (found.empty()) return 0;
    if (found != std::to_string(level) || first_word(cache + "type") == "Instruction") continue;
    return std::strtoll(first_word(cache + "size").c_str(), nullptr, 10) << 10;  // "32768K"
  }
}

}  // namespace shoal
