// The instruction sets of the processor.
#pragma once

namespace shoal {

struct InstructionSet {
  const char* name;
  bool present;  // the processor and the system have it
};

// The instruction sets of x86-64 that kernels are compiled for. Another processor has none of them.
struct InstructionSets {
  InstructionSet avx2, fma, avx512f, avx512_wide, avx512_bf16, amx_bf16;
  // AVX512_BF16 multiplies fewer numbers in a second than float32 does. So it is on Intel's processors since
  // Sapphire Rapids, which are made for AMX; a virtual machine may hide that.
  bool slow_bf16 = false;
};
InstructionSets instruction_sets();

// Ends the process with a message and exit code 1 when the processor lacks what all of the program is
// compiled for, x86-64-v2; an unknown instruction would end it without one.
void check_cpu();

}  // namespace shoal
