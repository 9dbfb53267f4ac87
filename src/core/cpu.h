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
};
InstructionSets instruction_sets();

// Ends the process with a message and exit code 1 when the processor lacks what all of the program is
// compiled for, x86-64-v2; an unknown instruction would end it without one.
void check_cpu();

}  // namespace shoal
