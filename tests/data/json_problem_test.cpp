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

TEST(JsonProblem, NamesHalfOfASurrogatePair) {
  const auto half = [](const std::string& escape, int column) {
    return "line 1, column " + std::to_string(column) + ": " + escape +
           " is half of a surrogate pair, without the other half; remove it";
  };
  EXPECT_EQ(problem(R"({"text":"x\ud800y"})"), half(R"(\ud800)", 11));
  EXPECT_EQ(problem(R"(["\uD83D"])"), half(R"(\uD83D)", 3));
  EXPECT_EQ(problem(R"(["\ud800\n"])"), half(R"(\ud800)", 3));
  EXPECT_EQ(problem(R"(["\ud800\u0041"])"), half(R"(\ud800)", 3));
  EXPECT_EQ(problem(R"(["\ud800\uda00"])"), half(R"(\ud800)", 3));
  EXPECT_EQ(problem(R"(["é\udc00"])"), half(R"(\udc00)", 4));
  // These are not the problem: a pair, an escaped backslash, another escape.
  EXPECT_EQ(problem(R"(["\ud83d\ude00" x])"), "line 1, column 17: 'x' is not expected here");
  EXPECT_EQ(problem(R"(["\\ud800"x])"), "line 1, column 11: 'x' is not expected here");
  EXPECT_EQ(problem(R"(["\u00e9\x"])"), "line 1, column 10: 'x' is not expected here");
  EXPECT_EQ(problem(R"(["\ud83d\ude00\x"])"), "line 1, column 16: 'x' is not expected here");
}

TEST(JsonProblem, NamesNumbersThatJsonLacks) {
  EXPECT_EQ(problem(R"({"a": NaN})"), "line 1, column 7: NaN is not JSON; write null");
  EXPECT_EQ(problem(R"([Infinity])"), "line 1, column 2: Infinity is not JSON; write null");
  EXPECT_EQ(problem(R"([-Infinity])"), "line 1, column 3: Infinity is not JSON; write null");
  EXPECT_EQ(problem(R"([None])"), "line 1, column 2: 'N' is not expected here");
}

}  // namespace
}  // namespace shoal
