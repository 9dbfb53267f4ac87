// Functions that the preparations of several datasets share.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "data/dataset.h"
#include "data/prepare_options.h"
#include "data/split_writer.h"
#include "data/staged_folder.h"
#include "data/tokenizer.h"

namespace shoal {

enum class Split : std::uint8_t { train, val, test };
// The splits' names in files and in meta.json.
inline constexpr std::array kSplitNames = {"train", "val", "test"};

// Up to this many documents, each is cut into train and val; more are drawn whole.
inline constexpr std::int64_t kCutDocuments = 20;

// A random number in [0, 1) for each document.
double split_draw(std::uint64_t seed, std::int64_t document);

// 10 / val_fraction, at most a million. With fewer documents than this, exactly the share val_fraction goes
// to val.bin, so that it is not empty by chance. With more, the probability of that is below exp(-10).
std::int64_t few_documents(double val_fraction);

// Decides which documents are for validation.
class SplitRule {
 public:
  // `documents` is their number; any number from few_documents() on has the same effect.
  SplitRule(std::uint64_t seed, double val_fraction, std::int64_t documents);
  Split operator()(std::int64_t document) const {
    return split_draw(seed_, document) < bound_ ? Split::val : Split::train;
  }

 private:
  std::uint64_t seed_;
  double bound_;
};

// Whether options.out holds a dataset that is to be replaced. Throws PrepareError when it holds a dataset,
// which the message describes, and options.force is false, or when it is or holds anything else.
bool replaces_dataset(const PrepareOptions& options);

int token_width(const Tokenizer& tokenizer);  // bytes per token

// Completes `meta`, writes meta.json, and the tokenizer's own files if it is a BPE other than GPT-2's, and
// moves the folder into place. `splits`: train, val and perhaps test. Throws PrepareError when one is empty,
// Error when the disk is full.
void finish_dataset(const PrepareOptions& options, const Tokenizer& tokenizer, int bytes_per_token,
                    std::span<SplitWriter> splits, StagedFolder& folder, DatasetMeta& meta);

}  // namespace shoal
