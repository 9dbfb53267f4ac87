#include "ops/cuda/cuda.h"
#include "ops/under_test.h"

namespace shoal::test {

// It ignores `threads`, and one instance serves all tests.
std::shared_ptr<Backend> backend_under_test(int) {
  static const std::shared_ptr<Backend> backend = make_cuda_backend();
  return backend;
}
const bool kBiasAfterRounding = true;

}  // namespace shoal::test
