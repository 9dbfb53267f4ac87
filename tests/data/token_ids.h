// The tokens of a file of them, for tests.
#pragma once

#include <vector>

#include "data/token_file.h"

namespace shoal::test {

inline std::vector<std::int32_t> ids_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.size()));
  file.copy(0, ids);
  return ids;
}

}  // namespace shoal::test
