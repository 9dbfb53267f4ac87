// The processor that ops/emulated_avx512.h makes of this one.
#include "core/cpu.h"

namespace shoal {

InstructionSets instruction_sets() {
  return {{"AVX2", true},        {"FMA", true},     {"AVX-512F", true}, {"AVX-512BW/DQ/VL", true},
          {"AVX512_BF16", true}, {"AMX-BF16", true}};
}
void check_cpu() {}

}  // namespace shoal
