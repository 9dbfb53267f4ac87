// Folders of token files that other programs made: llm.c's and nanoGPT's. They have no meta.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "data/token_file.h"

namespace shoal {

struct TokenFolder {
  std::map<std::string, TokenFile> splits;  // train, val, perhaps test
  std::int64_t vocab_size = 0;
  bool assumed_vocabulary = false;  // nothing in the folder says it
  std::string tokenizer;            // Tokenizer::to_json as text; empty: only the ids are known
  std::string description;          // in words
};

// Opens the token files of `folder`:
//   - llm.c's: NAME_train.bin and NAME_val.bin, or shards such as NAME_train_000001.bin, whose tokens follow
//   each
//     other in the order of their names. The headers say which tokenizer they have.
//   - nanoGPT's: train.bin and val.bin of raw uint16, and meta.pkl of a vocabulary of characters; without
//   that,
//     GPT-2's vocabulary is assumed.
// Throws UserError when a file is missing or damaged, or the folder holds something else; then it says how to
// prepare that.
TokenFolder open_token_folder(const std::filesystem::path& folder);

// Throws the UserError for a folder that is not there or is no folder.
void require_data_folder(const std::filesystem::path& folder);

}  // namespace shoal
