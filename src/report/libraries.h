// The libraries that this room is built on.
#pragma once

#include "core/library.h"

namespace shoal {

std::vector<Library> report_libraries();

}  // namespace shoal
