// The CPU backend from outside: SIMD and a team of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/cpu.h"
#include "ops/kernel_sizes.h"
#include "ops/kernels.h"

namespace shoal {

// The instructions of the kernels, which are compiled for each level. A level has the instructions of those
// before it. The bits of results depend on it.
enum class CpuLevel : std::uint8_t {
  baseline,  // x86-64-v2; elsewhere what the compiler takes for the machine, and the only one
  avx2,      // with FMA
  avx512,    // F, BW, DQ and VL
  avx512_bf16,
  amx,  // tile registers for products in bfloat16; AMX-TILE and AMX-BF16
};
// "x86-64-v2", "avx2", ...
std::string_view name_of(CpuLevel level);
// The levels of a processor with these instructions: the highest one, and the one that is taken, since it is
// the fastest.
struct CpuLevels {
  CpuLevel highest, fastest;
};
CpuLevels levels_of(const InstructionSets& sets);
// The fastest level of this processor, or the one that the variable SHOAL_ISA names. Throws UserError when it
// names none, or one that the processor lacks.
CpuLevel cpu_level();

// threads 0 means every core that this process may use. The calling thread is one of them. All backends of a
// process have one level, that of the first; throws Error for another.
std::unique_ptr<Backend> make_cpu_backend(int threads = 0, CpuLevel level = cpu_level());

// Bytes that the kernels allocate for themselves in training.
std::size_t cpu_scratch_bytes(int threads, const KernelSizes& sizes);

}  // namespace shoal
