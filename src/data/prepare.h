// `shoal prepare`: tokenizes text. Writes train.bin, val.bin, perhaps test.bin, and meta.json
// (data/dataset.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/dataset.h"
#include "data/prepare_options.h"

namespace shoal {

// A dataset by name. A new one is a function and a row in prepare.cpp; `shoal prepare` and errors find it
// there.
struct DatasetScheme {
  std::string_view name;            // PrepareOptions::dataset
  std::string_view tokenizer = "";  // the only one; "" where PrepareOptions::tokenizer chooses
  bool takes_inputs = false;        // PrepareOptions::inputs, files of the user
  bool takes_splits = false;        // PrepareOptions::val and test
  bool takes_truncate = false;      // PrepareOptions::truncate
  bool is_wikitext = false;         // takes PrepareOptions::unk, and one input or none (data/wikitext.h)
  DatasetMeta (*prepare)(const PrepareOptions& options, int threads) = nullptr;
};
std::span<const DatasetScheme> dataset_schemes();
const DatasetScheme* find_dataset_scheme(std::string_view name);  // null where there is none

// Writes the dataset beside options.out and renames it into place, so that it is complete or absent, and
// returns its metadata. Memory use does not depend on the size of the input.
//
// How the documents are split:
// - Up to kCutDocuments documents (data/prepare_parts.h): each is cut. Its first floor((1 - val_fraction) *
// characters) characters
//   go to train.bin, as in nanoGPT, and the rest to val.bin.
// - More documents: each goes to val.bin with probability val_fraction, drawn from (seed, document number).
//   If they are fewer than 10 / val_fraction, exactly this share does, rounded, at least one document.
// - With options.val: all inputs go to train.bin, and options.val to val.bin.
// - options.test goes to test.bin.
// - WikiText comes in splits.
//
// The tokenizer's end-of-text token, if it has one, follows every document; between documents that are cut,
// it stands once in each split. The vocabulary of the char tokenizer covers all splits.
//
// Throws UserError for bad input (see data/documents.h and data/download.h), and when a split shares files
// with another or options.out is in use; PrepareError for the faults listed there; Error when the disk is
// full.
DatasetMeta prepare(const PrepareOptions& options);

}  // namespace shoal
