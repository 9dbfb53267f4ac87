#include "ops/cpu/cpu.h"
#include "ops/under_test.h"

namespace shoal::test {

std::shared_ptr<Backend> backend_under_test(int threads) { return make_cpu_backend(threads); }
const bool kBiasAfterRounding = false;

}  // namespace shoal::test
