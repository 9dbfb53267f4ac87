// The tokenizer of a new dataset, as a user names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace shoal {

struct TokenizerChoice {
  enum class Kind : std::uint8_t {
    gpt2,     // "gpt2": GPT-2's, from its files
    chars,    // "char"
    bytes,    // "bytes"
    trained,  // "bpe:SIZE": a byte-level BPE, learnt from the text
    folder,   // the path of a folder with vocab.json and merges.txt
  };
  Kind kind = Kind::gpt2;
  std::int64_t vocab_size = 0;     // if trained: the 256 bytes, merges, end of text
  std::filesystem::path folder{};  // if folder
};

// Throws UserError when `text` is neither a name nor a folder that exists, and when SIZE is no number or
// leaves no merge. "./char" is the folder of that name.
TokenizerChoice parse_tokenizer_choice(const std::string& text);

}  // namespace shoal
