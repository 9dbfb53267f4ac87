// The choice of a level.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <string>

#include <fmt/ranges.h>

#include "core/error.h"
#include "ops/cpu/level_kernels.h"

extern "C" {
shoal::cpu::GetLevelKernels shoal_cpu_baseline;
#ifdef __x86_64__
shoal::cpu::GetLevelKernels shoal_cpu_avx2, shoal_cpu_avx512, shoal_cpu_avx512_bf16;
#endif
}

namespace shoal {
namespace {

#ifdef __x86_64__
constexpr std::array<std::string_view, 5> kNames = {"x86-64-v2", "avx2", "avx512", "avx512_bf16", "amx"};
constexpr std::array<cpu::GetLevelKernels*, 5> kKernels = {
    shoal_cpu_baseline, shoal_cpu_avx2, shoal_cpu_avx512, shoal_cpu_avx512_bf16, shoal_cpu_avx512_bf16};
#else
constexpr std::array<std::string_view, 1> kNames = {"native"};
constexpr std::array<cpu::GetLevelKernels*, 1> kKernels = {shoal_cpu_baseline};
#endif

CpuLevel highest_level(const InstructionSets& sets) {
  if (!sets.avx2.present || !sets.fma.present) return CpuLevel::baseline;
  if (!sets.avx512f.present || !sets.avx512_wide.present) return CpuLevel::avx2;
  if (!sets.avx512_bf16.present) return CpuLevel::avx512;
  return sets.amx_bf16.present ? CpuLevel::amx : CpuLevel::avx512_bf16;
}

}  // namespace

std::string_view name_of(CpuLevel level) { return kNames[static_cast<std::size_t>(level)]; }

CpuLevels levels_of(const InstructionSets& sets) {
  const auto highest = highest_level(sets);
  const bool slow = highest == CpuLevel::avx512_bf16 && sets.slow_bf16;
  return {.highest = highest, .fastest = slow ? CpuLevel::avx512 : highest};
}

CpuLevel cpu_level() {
  static const auto levels = levels_of(instruction_sets());  // asked once: slow in a virtual machine
  const char* wanted = std::getenv("SHOAL_ISA");
  if (!wanted || !*wanted) return levels.fastest;
  const auto found = std::ranges::find(kNames, std::string_view(wanted));
  if (found == kNames.end())
    fail_user("the variable SHOAL_ISA is \"{}\", which is none of {}", wanted, fmt::join(kNames, ", "));
  const auto level = static_cast<CpuLevel>(found - kNames.begin());
  if (level > levels.highest)
    fail_user("the variable SHOAL_ISA is \"{}\", but this processor has {} at most", wanted,
              name_of(levels.highest));
  return level;
}

std::unique_ptr<Backend> make_cpu_backend(int threads, CpuLevel level) {
  static std::atomic<int> of_process = -1;
  int before = -1;
  if (!of_process.compare_exchange_strong(before, static_cast<int>(level)) &&
      before != static_cast<int>(level))
    fail("a backend of {} after one of {}", name_of(level), name_of(static_cast<CpuLevel>(before)));
  return kKernels[static_cast<std::size_t>(level)]().make_backend(threads, level);
}

std::size_t cpu_scratch_bytes(int threads, const KernelSizes& sizes) {
  const auto level = cpu_level();
  return kKernels[static_cast<std::size_t>(level)]().scratch_bytes(threads, sizes, level);
}

}  // namespace shoal
