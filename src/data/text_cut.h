// Positions where a text can be cut without changing its tokens.
#pragma once

#include <cstddef>
#include <string_view>

namespace shoal {

// The last position in (0, text.size()) where a word certainly ends: before a single space or after a single
// line feed, between characters that are not white space. With every tokenizer of data/tokenizer.h, the
// tokens of both sides are the tokens of the whole. 0 when there is no such position.
std::size_t last_safe_cut(std::string_view text);

// text.size() without the bytes of an incomplete UTF-8 character at the end.
std::size_t whole_characters(std::string_view text);

}  // namespace shoal
