// The control groups of Linux (version 1 or 2), which limit a container's processors and memory.
#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

struct ControlGroup {
  std::string folder;  // "/sys/fs/cgroup/a/b"; it may not exist
  bool second;         // of version 2
};

// The groups whose limits on `controller` ("cpu", "memory") hold for this process: its own ones and all above
// them. `groups` is /proc/self/cgroup.
std::vector<ControlGroup> control_groups(std::string_view controller, std::istream& groups);
std::vector<ControlGroup> control_groups(std::string_view controller);

}  // namespace shoal
