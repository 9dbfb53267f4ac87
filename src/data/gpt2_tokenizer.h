// GPT-2's tokenizer: byte-level byte-pair encoding (Radford et al. 2019, section 2.2).
#pragma once

#include <memory>
#include <string_view>

#include "data/tokenizer.h"

namespace shoal {

// From the text of vocab.bpe: two tokens a line, in order of rank. Ids are GPT-2's: the bytes, what the
// merges make, end of text. Throws UserError, naming `source` and the line, where a line does not make a new
// token of two others.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(std::string_view merges, std::string_view source);

}  // namespace shoal
