// The fault of a text that a JSON parser refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// In words, with line and column, e.g. "line 3, column 7: '}' is not expected here". The parser stopped when
// it had read `bytes_read` bytes of `text`. `first_line` false leaves "line 1" out, for texts that are lines
// themselves.
std::string json_problem(std::string_view text, std::size_t bytes_read, bool first_line = true);

}  // namespace shoal
