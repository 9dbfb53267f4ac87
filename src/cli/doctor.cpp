// shoal doctor: prints the hardware and libraries of this machine and this build, and measures their speed.
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "comm/mpi/load.h"
#include "comm/nccl/nccl.h"
#include "config/libraries.h"
#include "config/memory.h"
#include "core/clock.h"
#include "core/core_latency.h"
#include "core/cores.h"
#include "core/cpu.h"
#include "core/text.h"
#include "core/version.h"
#include "data/libraries.h"
#include "model/arena.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/kernels.h"
#include "report/libraries.h"

namespace shoal::cli {
namespace {

void line(const std::string& name, const std::string& value, const std::string& remark = {}) {
  fmt::print("  {:<18} {}{}{}\n", name, value, remark.empty() ? "" : "  ", remark);
}

void print_processor() {
  fmt::print("processor\n");
  line("model", processor_name());
  line("cores", fmt::format("{}", usable_cores()),
       fmt::format("usable by this process, of {} in the machine; train.threads=0 takes all",
                   sysconf(_SC_NPROCESSORS_CONF)));
  std::vector<std::string> caches;
  for (int level = 1; level <= 3; ++level) {
    if (const auto bytes = cache_bytes(level); bytes > 0)
      caches.push_back(fmt::format("L{} {}", level, format_bytes(static_cast<double>(bytes))));
  }
  if (!caches.empty()) line("caches", fmt::format("{}", fmt::join(caches, ", ")));
#ifdef __x86_64__
  const auto sets = instruction_sets();
  std::vector<std::string> present;
  for (const auto& set :
       {sets.avx2, sets.fma, sets.avx512f, sets.avx512_wide, sets.avx512_bf16, sets.amx_bf16}) {
    if (set.present) present.emplace_back(set.name);
  }
  line("instructions",
       present.empty() ? "none beyond x86-64-v2" : fmt::format("{}", fmt::join(present, ", ")));
#endif
  line("kernels", std::string(name_of(cpu_level())),
       "the level that is used here; the variable SHOAL_ISA asks for another");
}

void print_memory_of_machine() {
  const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES));
  fmt::print("\nmemory and disk\n");
  line("memory", format_bytes(pages * static_cast<double>(sysconf(_SC_PAGESIZE))),
       fmt::format("{} available", format_bytes(available_memory())));
  std::error_code error;
  const auto disk = std::filesystem::space(".", error);
  if (!error)
    line("this folder's disk", format_bytes(static_cast<double>(disk.capacity)),
         fmt::format("{} free", format_bytes(static_cast<double>(disk.available))));
}

// FLOP/s of the product of a GPT-2 block that has most FLOPs, on 4 texts of 256 tokens.
double product_flops(int threads, DType dtype) {
  constexpr std::int64_t kTokens = 1024, kWidth = 768, kHidden = 4 * kWidth;
  const auto backend = make_cpu_backend(threads);
  Arena arena(*backend, (kTokens * kWidth + kHidden * kWidth + kTokens * kHidden) * size_of(dtype));
  const auto x = arena.take(dtype, {kTokens, kWidth}), w = arena.take(dtype, {kHidden, kWidth}),
             y = arena.take(dtype, {kTokens, kHidden});
  double best = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {  // the first builds the kernel
    const Stopwatch watch;
    backend->linear_forward(y, x, w, {});
    best = std::max(best, 2.0 * kTokens * kWidth * kHidden / watch.seconds());
  }
  return best;
}

// 1, 2, 4, ... and all cores.
std::vector<int> thread_counts() {
  const int cores = usable_cores();
  std::vector<int> counts;
  for (int count = 1; count < cores; count *= 2) counts.push_back(count);
  counts.push_back(cores);
  return counts;
}

void print_speed() {
  double load = 0;  // of the last minute, before the measurements below
  if (getloadavg(&load, 1) != 1) load = 0;
  const auto counts = thread_counts();
  const auto row = [&](std::string_view name, auto&& cell) {
    fmt::print("  {:<18}", name);
    for (const int threads : counts) {
      fmt::print(" {:>11}", cell(threads));
      std::fflush(stdout);
    }
    fmt::print("\n");
  };
  fmt::print("\nspeed, measured now\n");
  row("threads", [](int threads) { return threads; });
  for (const auto dtype : {DType::f32, DType::bf16}) {
    row(fmt::format("{}, GFLOP/s", name_of(dtype)), [&](int threads) {
      return fmt::format("{:.0f}", make_cpu_backend(threads)->measure_peak_flops(dtype) / 1e9);
    });
    row("  in a product",
        [&](int threads) { return fmt::format("{:.0f}", product_flops(threads, dtype) / 1e9); });
  }
  row("memory read, GB/s", [](int threads) {
    return fmt::format("{:.1f}", make_cpu_backend(threads)->measure_read_bandwidth() / 1e9);
  });
  const auto cores = allowed_core_numbers();
  std::size_t reached = 1;
  double farthest = 0;
  row("between cores, ns", [&](int threads) {
    for (; reached < std::min(static_cast<std::size_t>(threads), cores.size()); ++reached)
      farthest = std::max(farthest, core_latency(cores[0], cores[reached]));
    return farthest > 0 ? fmt::format("{:.0f}", farthest * 1e9) : "-";
  });
  if (load > 0.5) {
    fmt::print("  Other programs were running (load {:.1f}): alone, the machine is faster.\n", load);
  }
}

void print_libraries() {
  auto libraries = data_libraries();
  const auto append = [&](std::vector<Library> more) {
    libraries.insert(libraries.end(), more.begin(), more.end());
  };
  append(config_libraries());
  append(report_libraries());
  append({{"CLI11", CLI11_VERSION, "the command line"}});
  append(core_libraries());
  fmt::print("\nlibraries\n");
  for (const auto& library : libraries) {
    fmt::print("  {:<18} {:<12} {}\n", library.name, library.version, library.purpose);
  }
  const auto cuda = cuda_version();
  fmt::print("  {:<18} {:<12} {}\n", "CUDA", cuda.empty() ? "-" : cuda,
             has_cuda_module() ? "GPUs" : "not in this build: GPUs");
  const auto nccl = nccl_version();
  fmt::print("  {:<18} {:<12} {}\n", "NCCL", nccl.empty() ? "-" : nccl,
             nccl.empty() ? "ranks on several GPUs: " + no_nccl() : "ranks on several GPUs");
  if (cuda.empty()) return;
  const auto [version, why_not] = cuda_attention_library();
  fmt::print("  {:<18} {:<12} {}\n", "cuDNN", version.empty() ? "-" : version,
             version.empty() ? "attention on GPUs; Shoal's own kernels are used, because " + why_not
                             : "attention on GPUs");
}

void print_gpus() {
  if (!has_cuda_module()) return;
  fmt::print("\nGPUs\n");
  int number = 0;
  for (const auto& gpu : cuda_devices()) {
    line(std::to_string(number++), gpu.name,
         fmt::format("{}, compute capability {}.{}", format_bytes(static_cast<double>(gpu.bytes)), gpu.major,
                     gpu.minor));
  }
  if (number == 0) line("none", no_cuda_device());
}

void print_ranks() {
  fmt::print("\nranks\n");
  line("threads", "yes", "of one process: shoal train CONFIG --ranks N");
  const auto mpi = [](const char* name, Launcher::Kind kind, const char* launcher, const char* packages,
                      const char* package) {
    const bool built = mpi::has_module(kind);
    line(name, built ? "yes" : "no ",
         built ? fmt::format("on any number of machines: {} -n N shoal train CONFIG", launcher)
               : fmt::format("install {} (Debian, Ubuntu) and build again, or the package {}", packages,
                             package));
  };
  mpi("Open MPI", Launcher::Kind::open_mpi, "mpirun", "libopenmpi-dev and openmpi-bin", "shoal-openmpi");
  // MPICH's launcher has this name everywhere; mpirun may be Open MPI's where both are installed.
  mpi("MPICH", Launcher::Kind::mpich, "mpiexec.hydra", "libmpich-dev and mpich", "shoal-mpich");
}

void run_doctor() {
  cpu_level();  // an error before the first line
  fmt::print("shoal {}\n\n", kVersion);
  print_processor();
  print_memory_of_machine();
  print_speed();
  print_gpus();
  print_ranks();
  print_libraries();
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto* command = add_command(
      app, "doctor",
      "Print the hardware and libraries of this machine and this build, and measure their speed",
      {{"shoal doctor", "takes some seconds; best while nothing else runs"},
       {"shoal doctor > machine.txt", "a file to keep with a measurement, or to add to a bug report"}});
  command->callback(run_doctor);
}

}  // namespace shoal::cli
