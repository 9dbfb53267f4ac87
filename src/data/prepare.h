// `shoal prepare`: text to token files. Writes train.bin, val.bin, perhaps test.bin, and meta.json
// (data/dataset.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/dataset.h"
#include "data/prepare_options.h"

namespace shoal {

inline constexpr std::int64_t kCutDocuments = 20;

// A dataset by name. A new one is a function and a row in prepare.cpp; `shoal prepare` and errors find it
// there.
struct DatasetScheme {
  std::string_view name;        // PrepareOptions::dataset
  bool takes_inputs = false;    // files of the user's, PrepareOptions::inputs
  bool takes_splits = false;    // PrepareOptions::val and test
  bool takes_truncate = false;  // PrepareOptions::truncate
  DatasetMeta (*prepare)(const PrepareOptions& options, int threads) = nullptr;
};
std::span<const DatasetScheme> dataset_schemes();
const DatasetScheme* find_dataset_scheme(std::string_view name);  // null where there is none

// Writes the dataset beside options.out and renames it into place, so that it is whole or absent, and returns
// its meta data. Memory use does not depend on the size of the input.
//
// Documents go to val.bin at random with the probability val_fraction, decided by (seed, document number); of
// fewer than 10 / val_fraction documents exactly that share does, rounded, and one at least. Of up to
// kCutDocuments each one is cut instead: its first floor((1 - val_fraction) * characters) characters go to
// train.bin, as in nanoGPT, and the rest to val.bin. With options.val, all documents of the inputs go to
// train.bin and all of options.val to val.bin; those of options.test go to test.bin. Every document is
// followed by the tokenizer's end-of-text token where it has one; where each is cut, the token stands only
// between them. The char tokenizer knows the characters of all splits.
//
// Warns of a split that is shorter than GPT-2's block.
//
// Throws UserError for bad input (see data/documents.h and data/download.h), for a split that came out empty
// or has files of another, and when options.out is in use, holds a dataset while options.force is false, or
// something else; Error when the disk is full.
DatasetMeta prepare(const PrepareOptions& options);

// Why `name` cannot be PrepareOptions::dataset, or "".
std::string dataset_problem(const std::string& name);

}  // namespace shoal
