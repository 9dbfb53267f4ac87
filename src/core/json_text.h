// JSON values as text.
#pragma once

#include <string>

namespace shoal {

// On one line; in place of invalid UTF-8 there is U+FFFD, since names and messages may be a stranger's. Json:
// one of nlohmann-json's types.
template <typename Json>
requires requires { typename Json::error_handler_t; }
std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shoal
