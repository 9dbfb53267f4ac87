// A tokenizer whose tokens are characters, as in nanoGPT's character-level datasets.
#pragma once

#include <memory>
#include <string_view>

#include "data/tokenizer.h"

namespace shoal {

// `vocabulary` lists the characters by id, in UTF-8. Throws UserError, naming `source`, when it is empty,
// invalid or repeats a character.
std::unique_ptr<Tokenizer> make_char_tokenizer_of(std::string_view vocabulary, std::string_view source);

}  // namespace shoal
