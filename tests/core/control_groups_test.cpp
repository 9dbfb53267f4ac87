#include "core/control_groups.h"

#include <gtest/gtest.h>

#include <sstream>

namespace shoal::test {
namespace {

std::string folders(std::string_view controller, const char* groups) {
  std::istringstream text(groups);
  std::string all;
  for (const auto& group : control_groups(controller, text)) {
    all += group.folder + (group.second ? " (2)\n" : " (1)\n");
  }
  return all;
}

TEST(ControlGroups, OfAProcessAreItsOwnAndAllAbove) {
  EXPECT_EQ(folders("memory", "0::/job.slice/step:0/task\n"),
            "/sys/fs/cgroup/job.slice/step:0/task (2)\n"
            "/sys/fs/cgroup/job.slice/step:0 (2)\n"
            "/sys/fs/cgroup/job.slice (2)\n"
            "/sys/fs/cgroup (2)\n");
  EXPECT_EQ(folders("memory", "0::/\n"), "/sys/fs/cgroup (2)\n");
}

TEST(ControlGroups, OfVersionOneHaveAFolderForEachController) {
  constexpr const char* kGroups =
      "9:name=systemd:/\n"
      "4:memory:/docker/1a\n"
      "2:cpu,cpuacct:/docker/1a\n"
      "1:cpuset:/\n";
  EXPECT_EQ(folders("memory", kGroups),
            "/sys/fs/cgroup/memory/docker/1a (1)\n"
            "/sys/fs/cgroup/memory/docker (1)\n"
            "/sys/fs/cgroup/memory (1)\n");
  EXPECT_EQ(folders("cpu", kGroups),
            "/sys/fs/cgroup/cpu/docker/1a (1)\n"
            "/sys/fs/cgroup/cpu/docker (1)\n"
            "/sys/fs/cgroup/cpu (1)\n");
}

TEST(ControlGroups, OfAFileWithOtherLinesAreNone) { EXPECT_EQ(folders("cpu", "\n0\nx:y\n3:pids:/a\n"), ""); }

}  // namespace
}  // namespace shoal::test
