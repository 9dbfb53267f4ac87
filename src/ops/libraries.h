// Versions of the libraries behind ops/.
#pragma once

#include "core/library.h"

namespace shoal {

std::vector<Library> ops_libraries();

}  // namespace shoal
