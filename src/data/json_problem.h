// Describes the error in a text that a JSON parser refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// A description with line and column, e.g. "line 3, column 7: '}' is not expected here". `bytes_read` is the
// number of bytes of `text` that the parser read before it stopped. With `first_line` false, "line 1" is left
// out, for texts that are a single line of a file.
std::string json_problem(std::string_view text, std::size_t bytes_read, bool first_line = true);

}  // namespace shoal
