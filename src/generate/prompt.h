// The beginning of a text without a prompt.
#pragma once

#include <cstdint>

#include "data/tokenizer.h"

namespace shoal {

// The token that stands for an empty prompt: end-of-text, or else a newline, or else token 0.
std::int32_t first_token(const Tokenizer& tokenizer);

}  // namespace shoal
