// Runs of all tests at a lower level of instructions (ops.level.*) stop where SHOAL_LOWER_LEVEL is set and
// the level is the processor's own: that is how every test runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

class LowerLevel : public testing::Environment {
  void SetUp() override {
    const char* given = std::getenv("SHOAL_ISA");
    if (!given || !std::getenv("SHOAL_LOWER_LEVEL")) return;
    const std::string level = given;
    const auto asked = cpu_level();  // throws where the processor has less
    ::unsetenv("SHOAL_ISA");
    const bool own = cpu_level() == asked;
    ::setenv("SHOAL_ISA", level.c_str(), 1);
    if (!own) return;
    fmt::print("{} is the level of this processor\n", level);
    GTEST_SKIP();
  }
};
const auto* const kLowerLevel = testing::AddGlobalTestEnvironment(new LowerLevel);

}  // namespace
}  // namespace shoal::test
