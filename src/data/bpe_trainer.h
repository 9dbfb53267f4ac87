// Learns byte-pair encoding from the words of a text (Sennrich et al. 2016; on bytes, as in GPT-2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "data/word_table.h"

namespace shoal {

struct BpeMerge {
  std::int32_t left, right;
  bool operator==(const BpeMerge&) const = default;
};

// Returns up to `most` merges, in order. Tokens are numbered as in data/byte_pairs.h: the 256 bytes in the
// order of ByteAlphabet, then the results of the merges.
//
// Each merge joins the pair of neighbouring tokens that is most frequent in all words; of equally frequent
// ones the pair with the lowest left, then the lowest right token, which is the rule of Hugging Face's
// tokenizers. A pair that comes less than twice is not merged, nor one of more than BytePairs::kMaxSpelling
// bytes, so there may be fewer merges than `most`. The result depends on the words and their counts only.
//
// A merge takes time for the places that it changes, whatever the length of their words. Memory: some 30
// bytes for each byte of the words.
//
// `made`, if set, is called after each merge with the number of merges so far. Throws UserError when the
// words have 4 GiB together.
std::vector<BpeMerge> train_bpe(WordTable words, std::size_t most,
                                const std::function<void(std::size_t)>& made = {});

}  // namespace shoal
