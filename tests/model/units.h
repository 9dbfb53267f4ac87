// Models that tests of units share.
#pragma once

#include <string>
#include <vector>

#include "model/unit.h"

namespace shoal::test {

// Five heads of seven channels, 140 hidden channels, which are no whole vectors, and 61 classes: nothing
// divides by 2, 3 or 4.
inline const GptConfig kUneven{.n_layer = 3, .n_head = 5, .n_embd = 35, .block_size = 12, .vocab_size = 61};
inline const GptConfig kGpt2;  // the defaults are the 124M model's

inline std::vector<std::string> names(const UnitSpec& unit) {
  std::vector<std::string> result;
  for (const auto& parameter : unit.parameters) result.push_back(parameter.name);
  return result;
}

}  // namespace shoal::test
