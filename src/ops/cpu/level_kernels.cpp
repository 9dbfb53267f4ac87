#include "ops/cpu/level_kernels.h"

#include <algorithm>

#include "ops/cpu/cpu_backend.h"

namespace shoal::cpu {
namespace {

std::unique_ptr<Backend> make_backend(int threads, CpuLevel level) {
  return std::make_unique<CpuBackend>(threads, level);
}

std::size_t scratch_bytes(int threads, const KernelSizes& sizes, CpuLevel level) {
  const std::int64_t attention =
                         attention_scratch(threads, sizes.positions, sizes.head_size, sizes.compute, level),
                     rows = sizes.batch * sizes.positions;
  // Sums of a bias's columns, or a norm's three.
  const auto floats =
      std::max(attention, column_sum_scratch(rows, std::max(sizes.columns, 3 * sizes.channels)));
  return static_cast<std::size_t>(floats) * sizeof(float) +
         PackedProduct::scratch_bytes(threads, sizes, level == CpuLevel::amx);
}

constexpr LevelKernels kKernels = {make_backend, scratch_bytes};

}  // namespace
}  // namespace shoal::cpu

// The build gives each level another name.
extern "C" [[gnu::visibility("default")]] const shoal::cpu::LevelKernels& SHOAL_CPU_LEVEL() {
  return shoal::cpu::kKernels;
}
