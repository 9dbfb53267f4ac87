// The options of `shoal prepare`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/download.h"

namespace shoal {

struct PrepareOptions {
  std::string dataset;        // the name of a DatasetScheme (data/prepare.h)
  std::filesystem::path out;  // the dataset's folder
  bool force = false;         // whether to replace an existing dataset
  std::uint64_t seed = 1337;  // of the split, and of the synthetic text
  double val_fraction = 0.1;  // the share of the documents that goes to val.bin; see data/prepare.h
  double truncate = 1;        // see DatasetScheme: use only this share of the train text's characters
  int threads = 0;            // for tokenizing; 0: all cores
  FetchOptions fetch;         // where the files of datasets and of the gpt2 tokenizer come from

  // "text" and "openwebtext": files, folders and archives (data/documents.h). "wikitext-*": see
  // data/wikitext.h
  std::vector<std::filesystem::path> inputs;
  std::string field = "text";      // "text" and "openwebtext" only: of JSONL records
  std::string tokenizer = "gpt2";  // "text" and "wikitext-*" only: see data/tokenizer_choice.h

  // "text" only: files for val.bin, instead of a share of the inputs, and for test.bin; may be empty
  std::vector<std::filesystem::path> val, test;

  bool unk = false;  // "wikitext-*" only: the text with <unk> for rare words

  double save_every = 30;  // "openwebtext" only: seconds between saves of the progress

  // "synthetic" only: characters (= tokens) of both splits together, rounded up to whole plays
  std::int64_t size = 4'000'000;
};

// A fault that the caller can mend with other options; the message states the fact.
struct PrepareError : UserError {
  enum class Fault : std::uint8_t {
    folder_in_use,         // options.out cannot become a dataset
    dataset_exists,        // in options.out, and options.force is false
    nothing_left,          // after options.truncate
    empty_split,           // options.val_fraction is too small for so little text
    vocabulary_not_found,  // of the gpt2 tokenizer
    only_raw,              // options.unk is true, and options.inputs has WikiText without <unk>
    only_unk,              // the reverse
  };
  PrepareError(Fault fault_, const std::string& message) : UserError(message), fault(fault_) {}
  Fault fault;
};

}  // namespace shoal
