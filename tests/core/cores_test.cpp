#include "core/cores.h"

#include <gtest/gtest.h>

#include <string>

#include "data/temp_folder.h"

namespace shoal::test {
namespace {

TEST(Cores, OfAQuotaAreWhole) {
  EXPECT_EQ(cores_of_quota("200000", "100000"), 2);
  EXPECT_EQ(cores_of_quota("150000", "100000"), 2);
  EXPECT_EQ(cores_of_quota("1000", "100000"), 1);
  for (const char* none : {"max", "-1", "", "0"}) EXPECT_EQ(cores_of_quota(none, "100000"), 0) << none;
  EXPECT_EQ(cores_of_quota("200000", ""), 0);
  EXPECT_GE(usable_cores(), 1);
}

TEST(Cores, HaveCachesOfData) {
  const TempFolder folder;
  const auto write = [&](const std::string& index, const char* level, const char* type, const char* size) {
    folder.write(index + "/level", level);
    folder.write(index + "/type", type);
    folder.write(index + "/size", size);
  };
  EXPECT_EQ(cache_bytes(1, folder.path()), 0);
  write("index0", "1\n", "Instruction\n", "64K\n");
  write("index1", "1\n", "Data\n", "48K\n");
  write("index2", "2\n", "Unified\n", "512K\n");
  EXPECT_EQ(cache_bytes(1, folder.path()), 48 << 10);
  EXPECT_EQ(cache_bytes(2, folder.path()), 512 << 10);
  EXPECT_EQ(cache_bytes(3, folder.path()), 0);
  write("index3", "3\n", "Unified\n", "32768K\n");
  EXPECT_EQ(cache_bytes(3, folder.path()), 32 << 20);
}

}  // namespace
}  // namespace shoal::test
