// The libraries that config uses.
#pragma once

#include "core/library.h"

namespace shoal {

std::vector<Library> config_libraries();

}  // namespace shoal
