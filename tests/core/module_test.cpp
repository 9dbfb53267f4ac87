#include "core/module.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace shoal {
namespace {

using testing::HasSubstr;

constexpr const char* kVariable = "SHOAL_TEST_MODULE";

TEST(Module, TheVariableNamesIt) {
  EXPECT_EQ(find_module("libnone.so", kVariable), "");
  ::setenv(kVariable, "/some/where.so", 1);
  EXPECT_EQ(find_module("libnone.so", kVariable), "/some/where.so");
  ::unsetenv(kVariable);
}

TEST(Module, IsFoundInTheFoldersThatAreTold) {
  const auto program = find_module("test_core", kVariable);
  EXPECT_THAT(program, HasSubstr("test_core")) << "beside the program";
  EXPECT_THAT(module_folders(), HasSubstr(program.substr(0, program.rfind('/'))));
}

TEST(Module, WhyItCannotBeLoaded) {
  const auto missing = load_module("/no/such/file.so", "entry");
  EXPECT_EQ(missing.entry, nullptr);
  EXPECT_THAT(missing.why, HasSubstr("/no/such/file.so"));
  const auto other = load_module("libc.so.6", "no_such_entry");
  EXPECT_EQ(other.entry, nullptr);
  EXPECT_THAT(other.why, HasSubstr("not a module of this program"));
  EXPECT_NE(load_module("libc.so.6", "strlen").entry, nullptr);
}

}  // namespace
}  // namespace shoal
