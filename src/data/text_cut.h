// Where a text may be cut without changing its tokens.
#pragma once

#include <cstddef>
#include <string_view>

namespace shoal {

// The last position in (0, text.size()) where a tokenizer's words end for certain: before a single space, or
// after a single line feed, between characters that are no white space. Tokenizing both sides there gives the
// tokens of the whole, in every tokenizer of data/tokenizer.h. 0 when there is none.
std::size_t last_safe_cut(std::string_view text);

// text.size(), less the bytes of a UTF-8 character that is cut off by the end.
std::size_t whole_characters(std::string_view text);

}  // namespace shoal
