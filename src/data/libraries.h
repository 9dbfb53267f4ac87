// The libraries that src/data uses, with their versions.
#pragma once

#include "core/library.h"

namespace shoal {

std::vector<Library> data_libraries();

}  // namespace shoal
