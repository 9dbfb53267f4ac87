// GPT-2's tokenizer: byte-level byte-pair encoding (Radford et al. 2019, section 2.2).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace shoal {

// `merges` is the text of vocab.bpe: two tokens per line, in order of rank. Ids are numbered as in GPT-2: the
// bytes, the results of the merges, end of text. Throws UserError, naming `source` and the line, when a line
// does not make a new token of two earlier ones.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(std::string_view merges, std::string_view source);

// The contents of Hugging Face's files vocab.json and merges.txt, by name; load_gpt2_tokenizer reads them.
// Empty for other tokenizers.
std::map<std::string, std::string> gpt2_files(const Tokenizer& tokenizer);

}  // namespace shoal
