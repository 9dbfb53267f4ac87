// This file is compiled for any x86-64 (see CMakeLists.txt) and runs before anything else, so it uses no
// library and no inline function of one.
#include "core/cpu.h"

#include <string.h>
#include <unistd.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace shoal {
namespace {

#ifdef __x86_64__
// Not every compiler's __builtin_cpu_supports knows tiles.
bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1u) != 0;
}
#endif

void say(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

}  // namespace

InstructionSets instruction_sets() {
  InstructionSets found;
#ifdef __x86_64__
  __builtin_cpu_init();
  const auto add = [&](const char* name, bool compiled, bool present) {
    found.sets[found.count++] = {name, compiled, present};
  };
  add("AVX2", kCompiledFor.avx2, __builtin_cpu_supports("avx2"));
  add("FMA", kCompiledFor.fma, __builtin_cpu_supports("fma"));
  add("AVX-512F", kCompiledFor.avx512f, __builtin_cpu_supports("avx512f"));
  add("AVX-512BW/DQ/VL", kCompiledFor.avx512_wide,
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl"));
  add("AVX512_BF16", kCompiledFor.avx512_bf16, __builtin_cpu_supports("avx512bf16"));
  add("AMX-BF16", kCompiledFor.amx_bf16, has_amx_bf16());
#endif
  return found;
}

void check_cpu() {
  bool lacks = false;
  for (const auto& set : instruction_sets()) {
    if (!set.compiled || set.present) continue;
    say(lacks ? ", " : "shoal: error: this program was compiled for a processor with ");
    say(set.name);
    lacks = true;
  }
  if (!lacks) return;
  say(", which this one lacks; build it on this machine, or for a common level: -DSHOAL_MARCH=x86-64-v3\n");
  _exit(1);
}

}  // namespace shoal
