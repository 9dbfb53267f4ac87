#include "ops/cpu/level_kernels.h"

#include <dnnl.h>
#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/packed_product.h"
#include "ops/cpu/product_scratch.h"

namespace shoal::cpu {
namespace {

// oneDNN chooses its instructions itself, up to this level. It takes the choice before its first product
// alone, and a process has one level.
void limit_onednn(CpuLevel level) {
#ifdef __x86_64__
  constexpr dnnl_cpu_isa_t kIsas[] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2, dnnl_cpu_isa_avx512_core,
                                      dnnl_cpu_isa_avx512_core_bf16, dnnl_cpu_isa_avx512_core_bf16};
  dnnl_set_max_cpu_isa(kIsas[static_cast<std::size_t>(level)]);
#else
  static_cast<void>(level);
#endif
}

std::unique_ptr<Backend> make_backend(int threads, CpuLevel level) {
  limit_onednn(level);
  return std::make_unique<CpuBackend>(threads, level);
}

std::size_t scratch_bytes(int threads, const KernelSizes& sizes, CpuLevel level) {
  const std::int64_t attention =
                         attention_scratch(threads, sizes.positions, sizes.head_size, sizes.compute, level),
                     rows = sizes.batch * sizes.positions;
  const bool amx = level == CpuLevel::amx;
  const auto floats = [](std::int64_t count) { return sizeof(float) * static_cast<std::size_t>(count); };
  return floats(std::max(attention, column_sum_scratch(rows, sizes.columns))) +
         PackedProduct::scratch_bytes(threads, sizes, amx) +
         (PackedProduct::suits(sizes.compute, amx) ? 0 : product_scratch_bytes(sizes));
}

std::size_t generated_bytes(DType compute, CpuLevel level) {
  return PackedProduct::suits(compute, level == CpuLevel::amx) ? 0 : std::size_t{5} << 20;
}

std::vector<Library> libraries() {
  const auto* onednn = dnnl_version();
  return {{"oneDNN", fmt::format("{}.{}.{}", onednn->major, onednn->minor, onednn->patch),
           "matrix products on the CPU"}};
}

constexpr LevelKernels kKernels = {make_backend, scratch_bytes, generated_bytes, libraries};

}  // namespace
}  // namespace shoal::cpu

// The build gives each level another name.
extern "C" [[gnu::visibility("default")]] const shoal::cpu::LevelKernels& SHOAL_CPU_LEVEL() {
  return shoal::cpu::kKernels;
}
