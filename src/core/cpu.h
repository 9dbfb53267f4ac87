// Instruction sets: what the processor has, and what this program was compiled for.
#pragma once

namespace shoal {

struct InstructionSet {
  const char* name;
  bool compiled;  // the compiler was allowed to use it
  bool present;   // the processor and the system have it
};

// Instruction sets that speed depends on, or whose absence kills the program; of x86-64 alone.
struct InstructionSets {
  InstructionSet sets[6] = {};
  int count = 0;
  const InstructionSet* begin() const { return sets; }
  const InstructionSet* end() const { return sets + count; }
};
InstructionSets instruction_sets();

// Ends the process with a message and exit code 1 when the program was compiled for an instruction set that
// this processor lacks, which would otherwise end it without one.
void check_cpu();

// The instruction sets that the program was compiled for. Its file is apart, since core/cpu.cpp is compiled
// for any x86-64.
struct CompiledFor {
  bool avx2, fma, avx512f, avx512_wide, avx512_bf16, amx_bf16;
};
extern const CompiledFor kCompiledFor;

}  // namespace shoal
