// Penalties for tokens that a text already has.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generate/sample_token.h"

namespace shoal {

class Penalties {
 public:
  Penalties(const SampleOptions& options, std::int64_t vocab_size, std::span<const std::int32_t> prompt);

  // Counts a token that was generated.
  void add(std::int32_t token);

  // The logits with the penalties, valid until the next call; the same logits where there are none.
  std::span<const float> apply(std::span<const float> logits);

 private:
  double repetition_, presence_, frequency_;
  std::vector<std::int32_t> generated_;  // how often, by token; empty without penalties
  std::vector<bool> seen_;               // in the prompt or generated
  std::vector<float> changed_;
};

}  // namespace shoal
