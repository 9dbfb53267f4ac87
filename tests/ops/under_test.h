// The backend that the conformance tests check, of the program that they are linked into.
#pragma once

#include <memory>

#include "ops/kernels.h"

namespace shoal::test {

std::shared_ptr<Backend> backend_under_test(int threads);
// Whether products may be rounded before the bias is added.
extern const bool kBiasAfterRounding;

}  // namespace shoal::test
