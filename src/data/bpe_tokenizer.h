// Byte-level byte-pair encoding, the tokenizer of GPT-2 (Radford et al. 2019, section 2.2) and its kind.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "data/bpe_trainer.h"
#include "data/tokenizer.h"

namespace shoal {

// Tokens that stand for no text, such as <|endoftext|>: their ids by name.
using SpecialTokens = std::map<std::string, std::int32_t>;

// `merges` is the text of vocab.bpe or merges.txt: two tokens per line, in order of rank. The bytes, then the
// results of the merges, have the ids that `special` leaves, in ascending order. Without `special` there is
// <|endoftext|> after all others, as in GPT-2. Throws UserError, naming `source`, when a line does not make a
// new token of two earlier ones, naming the line too, and when the special ids leave a gap.
//
// The end of text is <|endoftext|>, or else </s>, where one of them is special. The tokenizer's name is
// "gpt2" if all of it is as in GPT-2, otherwise "bpe".
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string_view merges, std::string_view source,
                                              const std::optional<SpecialTokens>& special = std::nullopt);

// The text of merges.txt, without its first line, that names a version. Merges are as train_bpe returns them.
std::string merges_text(std::span<const BpeMerge> merges);

// The contents of Hugging Face's files vocab.json and merges.txt, by name; load_bpe_tokenizer reads them.
// Empty for other tokenizers than byte-level BPE.
std::map<std::string, std::string> bpe_files(const Tokenizer& tokenizer);

}  // namespace shoal
