// Text in lines of a given width.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// The words of `text` in lines of at most `width` characters (a longer word stands alone), each line after
// `indent`, which counts, and each ended by a newline.
std::string wrap(std::string_view text, std::string_view indent, std::size_t width);

}  // namespace shoal
