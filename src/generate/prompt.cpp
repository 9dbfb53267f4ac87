#include "generate/prompt.h"

#include <vector>

#include "core/error.h"

namespace shoal {

std::int32_t first_token(const Tokenizer& tokenizer) {
  if (const auto end = tokenizer.end_of_text()) return *end;
  std::vector<std::int32_t> newline;
  try {
    tokenizer.encode("\n", newline);
  } catch (const UserError&) {  // the vocabulary has no newline
    return 0;
  }
  return newline.front();
}

}  // namespace shoal
