#include "core/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shoal {
namespace {

TEST(JsonText, IsOneLineAndUtf8WhateverTheValue) {
  EXPECT_EQ(json_text(nlohmann::ordered_json{{"b", {1, 2}}, {"a", "é\n"}}), R"({"b":[1,2],"a":"é\n"})");
  EXPECT_EQ(json_text(nlohmann::json("cut \xc3")), "\"cut \xef\xbf\xbd\"");
}

}  // namespace
}  // namespace shoal
