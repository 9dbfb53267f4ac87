#include "core/json_integer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shoal::test {
namespace {

using nlohmann::json;

TEST(JsonInteger, IsAWholeNumberThatFits) {
  EXPECT_EQ(integer_of<int>(json::parse("7")), 7);
  EXPECT_EQ(integer_of<int>(json::parse("-7")), -7);
  EXPECT_EQ(integer_of<std::int64_t>(json::parse("9223372036854775807")), 9223372036854775807);
  EXPECT_EQ(integer_of<std::uint64_t>(json::parse("18446744073709551615")), 18446744073709551615u);
}

TEST(JsonInteger, IsNothingElse) {
  for (const char* text : {"1.0", "1e30", "2444444444444444444444444444", "9223372036854775808", "\"1\"",
                           "true", "null", "[1]"}) {
    EXPECT_EQ(integer_of<std::int64_t>(json::parse(text)), std::nullopt) << text;
  }
  EXPECT_EQ(integer_of<int>(json::parse("2147483648")), std::nullopt);
  EXPECT_EQ(integer_of<std::uint64_t>(json::parse("-1")), std::nullopt);
}

}  // namespace
}  // namespace shoal::test
