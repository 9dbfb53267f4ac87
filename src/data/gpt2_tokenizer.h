// GPT-2's tokenizer: byte-level byte-pair encoding (Radford et al. 2019, section 2.2).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace shoal {

// From the text of vocab.bpe: two tokens a line, in order of rank. Ids are GPT-2's: the bytes, what the
// merges make, end of text. Throws UserError, naming `source` and the line, where a line does not make a new
// token of two others.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(std::string_view merges, std::string_view source);

// The tokenizer as Hugging Face's files by their names: vocab.json and merges.txt, from which
// load_gpt2_tokenizer makes the same. None for another tokenizer.
std::map<std::string, std::string> gpt2_files(const Tokenizer& tokenizer);

}  // namespace shoal
