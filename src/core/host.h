// This machine's name.
#pragma once

#include <string>

namespace shoal {

std::string host_name();  // "localhost" where the system does not say it

}  // namespace shoal
