// Folders of token files written by llm.c or nanoGPT, without meta.json.
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
  bool assumed_vocabulary = false;  // vocab_size is a default: nothing in the folder tells it
  std::string tokenizer;            // Tokenizer::to_json as text; empty if only the ids are known
  std::string description;          // for the log
};

// Opens the token files of `folder`:
// - llm.c: NAME_train.bin and NAME_val.bin, or shards such as NAME_train_000001.bin, which are read in the
//   order of their names. Their headers name the tokenizer.
// - nanoGPT: train.bin and val.bin of raw uint16, and meta.pkl with a vocabulary of characters. Without
//   meta.pkl, GPT-2's vocabulary is assumed.
// Throws UserError when a file is missing or damaged, DataError when the folder holds something else.
TokenFolder open_token_folder(const std::filesystem::path& folder);

// Throws DataError when `folder` does not exist or is not a folder.
void require_data_folder(const std::filesystem::path& folder);

}  // namespace shoal
