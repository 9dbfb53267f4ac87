// The message that a failing rank sends to the others.
#pragma once

#include <string>

namespace shoal {

// The message of the exception that is being handled; "" where there is none, or another rank failed.
std::string handled_failure() noexcept;

}  // namespace shoal
