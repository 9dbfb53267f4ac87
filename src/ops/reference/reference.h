// The reference backend from outside: plain loops in double precision, the oracle of all tests.
#pragma once

#include <memory>

#include "ops/kernels.h"

namespace shoal {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace shoal
