// The body of a request for completions: https://platform.openai.com/docs/api-reference/completions, with
// top_k, min_p and repetition_penalty as vLLM has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "generate/sample_token.h"

namespace shoal::serve {

// The model that answers.
struct ServedModel {
  std::string name;
  const Tokenizer& tokenizer;
  std::int64_t vocab_size = 0;  // ids that both the model and the tokenizer know
  std::int64_t block_size = 0;  // the longest prompt, in tokens
  std::int64_t max_tokens = 0;  // of a text
};

struct CompletionPrompt {
  std::vector<std::int32_t> tokens;  // one at least
  bool empty = false;                // no text was given: the only token is first_token()
};

struct CompletionRequest {
  std::vector<CompletionPrompt> prompts;
  int n = 1;               // texts per prompt: choice i of prompt p has the index p * n + i
  SampleOptions sampling;  // with the limit of the vocabulary
  std::vector<std::string> stops;
  bool echo = false, stream = false, stream_usage = false;

  std::size_t choices() const { return prompts.size() * static_cast<std::size_t>(n); }
};

inline constexpr int kMostChoices = 128, kMostStops = 4, kMostLogprobs = 5;
inline constexpr std::size_t kMostStopBytes = 1024;

// Fields without a meaning here are ignored, and null stands for an absent one. A request without a seed gets
// a random one. Throws ApiError (400, or 404 for another model) naming the field at fault.
CompletionRequest read_request(std::string_view body, const ServedModel& model);

}  // namespace shoal::serve
