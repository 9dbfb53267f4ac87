// The size of a split's text, for perplexities that do not depend on the tokenizer.
#pragma once

#include <cstdint>

#include "data/token_file.h"
#include "data/tokenizer.h"

namespace shoal {

// The text of a split's targets: all tokens but the first. End-of-text tokens separate words and have no
// bytes.
struct TextSize {
  std::int64_t bytes = 0;
  std::int64_t words = 0;  // runs of bytes that are not ASCII white space
};

TextSize measure_text(const TokenFile& split, const Tokenizer& tokenizer);

}  // namespace shoal
