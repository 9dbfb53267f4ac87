// Choosing the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>

namespace shoal {

struct SampleOptions {
  double temperature = 0.8;   // 0: always the most likely token, the lowest id among equals
  int top_k = 200;            // only the k most likely tokens; 0 is off
  double top_p = 1.0;         // only the most likely tokens that hold this share of the probability
  std::uint64_t seed = 1337;  // the same seed and sample index give the same tokens
  std::int64_t max_tokens = 500;
  std::int64_t vocab_size = 0;  // only ids below this; 0: all that the model has
  bool cache = true;            // false: every position is computed again for every token
};

// Throws UserError for values out of range.
void validate(const SampleOptions& options);

// A token drawn with the probabilities softmax(logits / temperature), cut first to the top_k most likely
// tokens, then to the fewest of those that hold at least top_p of what is left (nucleus sampling, Holtzman et
// al. 2020); among equals the lower id counts as the more likely. `uniform` in [0, 1) decides: it picks from
// the tokens that remain in the order of their ids, so options that leave the same tokens choose the same
// one. Throws Error when a logit is not finite.
std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double uniform);

}  // namespace shoal
