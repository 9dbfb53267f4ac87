#include "core/control_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace shoal {

std::vector<ControlGroup> control_groups(std::string_view controller, std::istream& groups) {
  std::vector<ControlGroup> all;
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const auto first = line.find(':'), last = line.find(':', first + 1);  // the path may have more
    if (first == line.npos || last == line.npos) continue;
    const auto controllers = fmt::format(",{},", line.substr(first + 1, last - first - 1));
    const bool second = controllers == ",,";
    if (!second && controllers.find(fmt::format(",{},", controller)) == std::string::npos) continue;
    const auto mounted = second ? "/sys/fs/cgroup" : fmt::format("/sys/fs/cgroup/{}", controller);
    auto path = line.substr(last + 1);
    // The groups above limit, too. A container may see only its own group's folder, mounted at the root.
    while (true) {
      if (path == "/") path.clear();
      all.push_back({mounted + path, second});
      if (path.empty()) break;
      path.resize(std::min(path.rfind('/'), path.size() - 1));
    }
  }
  return all;
}

std::vector<ControlGroup> control_groups(std::string_view controller) {
  std::ifstream groups("/proc/self/cgroup");
  return control_groups(controller, groups);
}

}  // namespace shoal
