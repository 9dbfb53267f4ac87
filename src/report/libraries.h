// The libraries that report uses.
#pragma once

#include "core/library.h"

namespace shoal {

std::vector<Library> report_libraries();

}  // namespace shoal
