// Choosing the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace shoal {

// The ranges of penalties: what is beyond them leaves float32, or no choice.
inline constexpr double kLeastRepetitionPenalty = 0.01, kMostRepetitionPenalty = 100, kMostPenalty = 1e6;

struct SampleOptions {
  double temperature = 0.8;  // 0: always the most likely token, the lowest id among equals
  int top_k = 200;           // only the k most likely tokens; 0 is off
  double top_p = 1.0;        // only the most likely tokens that hold this share of the probability
  double min_p = 0;          // only tokens at least this share as likely as the most likely one
  // Penalties: the logit of a token that the text has is divided by the first (multiplied where it is
  // negative; Keskar et al. 2019); that of a token that was generated falls by the second, and by the third
  // each time.
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::uint64_t seed = 1337;  // the same seed and sample index give the same tokens
  std::int64_t max_tokens = 500;
  std::int64_t vocab_size = 0;  // only ids below this; 0: all that the model has
  bool cache = true;            // false: every position is computed again for every token
  int logprobs = -1;            // how many of the most likely tokens to report with each one; -1: nothing
};

// The probabilities that the model gives, before temperature and penalties, in nats.
struct Logprobs {
  double chosen = 0;
  std::vector<std::pair<std::int32_t, double>> top;  // token and logprob, the most likely first
};

// Throws UserError for values out of range.
void validate(const SampleOptions& options);

// A token drawn with the probabilities softmax(logits / temperature), cut first to the top_k most likely
// tokens, then to the fewest of those that hold at least top_p of what is left (nucleus sampling, Holtzman et
// al. 2020), then to those at least min_p times as likely as the first; among equals the lower id counts as
// the more likely. `uniform` in [0, 1) decides: it picks from the tokens that remain in the order of their
// ids, so options that leave the same tokens choose the same one. Throws Error when a logit is not finite.
std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double uniform);

// The logits of ids below vocab_size; all with 0.
std::span<const float> known_logits(std::span<const float> logits, std::int64_t vocab_size);

// The logprobs of `chosen` and of the `top` most likely tokens. Throws Error when a logit is not finite.
Logprobs logprobs_of(std::span<const float> logits, std::int32_t chosen, int top);

}  // namespace shoal
