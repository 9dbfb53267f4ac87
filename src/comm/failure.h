// What a rank tells the others when it fails.
#pragma once

#include <string>

namespace shoal {

// The message of the exception that is being handled; "" where there is none, or another rank failed.
std::string handled_failure() noexcept;

}  // namespace shoal
