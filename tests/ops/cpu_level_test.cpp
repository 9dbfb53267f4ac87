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

#ifdef __x86_64__
InstructionSets sets_up_to(CpuLevel level) {
  const auto set = [&](CpuLevel first) { return InstructionSet{"", level >= first}; };
  return {.avx2 = set(CpuLevel::avx2),
          .fma = set(CpuLevel::avx2),
          .avx512f = set(CpuLevel::avx512),
          .avx512_wide = set(CpuLevel::avx512),
          .avx512_bf16 = set(CpuLevel::avx512_bf16),
          .amx_bf16 = set(CpuLevel::amx)};
}

TEST(CpuLevels, TheHighestIsTheFastest) {
  for (const auto level :
       {CpuLevel::baseline, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16, CpuLevel::amx}) {
    EXPECT_EQ(levels_of(sets_up_to(level)).highest, level);
    EXPECT_EQ(levels_of(sets_up_to(level)).fastest, level);
  }
}

TEST(CpuLevels, PairsAreLeftAloneWhereTheyAreSlowAndThereAreNoTiles) {
  auto sets = sets_up_to(CpuLevel::avx512_bf16);
  sets.slow_bf16 = true;
  EXPECT_EQ(levels_of(sets).highest, CpuLevel::avx512_bf16);
  EXPECT_EQ(levels_of(sets).fastest, CpuLevel::avx512);
  sets.amx_bf16.present = true;
  EXPECT_EQ(levels_of(sets).fastest, CpuLevel::amx);
}
#endif

}  // namespace
}  // namespace shoal::test
