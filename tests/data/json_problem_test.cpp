#include "data/json_problem.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shoal {
namespace {

std::string problem(const std::string& text) {
  try {
    return nlohmann::json::parse(text).dump();
  } catch (const nlohmann::json::parse_error& error) {
    return json_problem(text, error.byte);
  }
}

TEST(JsonProblem, SaysWhereAndWhat) {
  EXPECT_EQ(problem(""), "it is empty");
  EXPECT_EQ(problem(" \n"), "it is empty");
  EXPECT_EQ(problem("{"), "it ends too early");
  EXPECT_EQ(problem("{\"a\": \"b"), "it ends too early");
  EXPECT_EQ(problem("{\"a\": tru"), "it ends too early");
  EXPECT_EQ(problem("{\"a\" 1}"), "line 1, column 6: '1' is not expected here");
  EXPECT_EQ(problem("{\"a\":\n  [1,, 2]}"), "line 2, column 6: ',' is not expected here");
  EXPECT_EQ(problem("{\"ä\": 1, x}"), "line 1, column 10: 'x' is not expected here");
  EXPECT_EQ(problem("{\"a\": é}"), "line 1, column 7: 'é' is not expected here");
  EXPECT_EQ(problem("{\"a\": \"b\nc\"}"), "line 1, column 9: the control character 0x0A is not allowed here");
  EXPECT_EQ(problem("\"caf\xe9 au lait\""), "line 1, column 5: the byte 0xE9 is not UTF-8");
  EXPECT_EQ(problem("\"caf\xff\""), "line 1, column 5: the byte 0xFF is not UTF-8");
  EXPECT_EQ(json_problem("{]", 2, false), "column 2: ']' is not expected here");
}

}  // namespace
}  // namespace shoal
