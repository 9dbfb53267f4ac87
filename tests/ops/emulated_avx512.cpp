// The processor that ops/emulated_avx512.h makes of this one.
#include <dlfcn.h>
#include <dnnl.h>

#include "core/cpu.h"

namespace shoal {

InstructionSets instruction_sets() {
  return {{"AVX2", true},        {"FMA", true},     {"AVX-512F", true}, {"AVX-512BW/DQ/VL", true},
          {"AVX512_BF16", true}, {"AMX-BF16", true}};
}
void check_cpu() {}

}  // namespace shoal

// oneDNN's kernels are not emulated. Of those that a processor without AVX-512 has, only SSE's give bits that
// do not depend on how threads share a product.
extern "C" dnnl_status_t dnnl_set_max_cpu_isa(dnnl_cpu_isa_t level) {
  static const auto real =
      reinterpret_cast<decltype(&dnnl_set_max_cpu_isa)>(::dlsym(RTLD_NEXT, "dnnl_set_max_cpu_isa"));
  return real(__builtin_cpu_supports("avx512bw") ? level : dnnl_cpu_isa_sse41);
}
