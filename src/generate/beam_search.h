// Beam search: the likeliest texts among those that grow from the `beams` likeliest beginnings of each
// length. The rules for ended texts are those of Hugging Face's transformers: a text's score is the sum of
// its tokens' logprobs over its length to the power length_penalty, and the search ends when no beginning
// that goes on could still beat the worst of `beams` ended texts, as far as its present length tells.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "generate/decoder.h"

namespace shoal {

struct BeamOptions {
  int beams = 4;
  std::int64_t max_tokens = 500;
  double length_penalty = 1;      // above 0 favours longer texts
  std::int32_t end_of_text = -1;  // the token that ends a text; below 0: none does
  std::int64_t vocab_size = 0;    // only ids below this; 0: all that the model has
};

struct BeamText {
  std::vector<std::int32_t> tokens;  // without the prompt; the end-of-text token is the last where it ended
  std::vector<double> logprobs;      // of each token
  double score = 0;
  bool ended = false;  // by that token
};

// The best texts behind a prompt of one token or more, `beams` at most, the best one first. The decoder has
// room for as many, and its texts are overwritten. `stop`, where given, is asked after each token and ends
// the search with what it has. Throws UserError where the prompt and max_tokens are more than the model's
// block.
std::vector<BeamText> beam_search(Decoder& decoder, std::span<const std::int32_t> prompt,
                                  const BeamOptions& options, const std::function<bool()>& stop = {});

}  // namespace shoal
