// The options of `shoal prepare`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/download.h"

namespace shoal {

struct PrepareOptions {
  std::string dataset;        // the name of a DatasetScheme (data/prepare.h)
  std::filesystem::path out;  // the dataset's folder
  bool force = false;         // whether a dataset that is there already is replaced
  std::uint64_t seed = 1337;  // of the split, and of the synthetic text
  double val_fraction = 0.1;  // the share of the documents (of a few: of each one's end) that becomes val.bin
  double truncate =
      1;  // "text", "shakespeare*": the share of the inputs' characters that is used, from the start
  int threads = 0;     // that tokenize; 0: all cores
  FetchOptions fetch;  // where the files of "shakespeare*" and of the gpt2 tokenizer come from

  // "text" and "openwebtext" only
  std::vector<std::filesystem::path> inputs;  // files, folders and archives: data/documents.h
  std::string field = "text";                 // of JSONL records
  std::string tokenizer = "gpt2";  // "text": "gpt2" | "char" | "bytes"; openwebtext is "gpt2" always

  // "text" only: what becomes val.bin, instead of a share of the inputs, and test.bin; as inputs, or empty
  std::vector<std::filesystem::path> val, test;

  double save_every = 30;  // "openwebtext" only: seconds between saves of what was done

  // "synthetic" only
  std::int64_t size =
      4'000'000;  // characters, which are its tokens, of both splits together; whole plays, so a few more
};

}  // namespace shoal
