#include "core/cores.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace shoal::test
