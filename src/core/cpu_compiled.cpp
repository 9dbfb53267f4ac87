// A constant and no code: whatever this file is compiled for, it can be read on any processor.
#include "core/cpu.h"

namespace shoal {
namespace {

constexpr CompiledFor compiled_for() {
  CompiledFor compiled{};
#ifdef __AVX2__
  compiled.avx2 = true;
#endif
#ifdef __FMA__
  compiled.fma = true;
#endif
#ifdef __AVX512F__
  compiled.avx512f = true;
#endif
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  compiled.avx512_wide = true;
#endif
#ifdef __AVX512BF16__
  compiled.avx512_bf16 = true;
#endif
#ifdef __AMX_BF16__
  compiled.amx_bf16 = true;
#endif
  return compiled;
}

}  // namespace

constinit const CompiledFor kCompiledFor = compiled_for();

}  // namespace shoal
