// shoal doctor: prints the hardware and libraries of this machine and this build, and measures their speed.
#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <thread>

#include "cli/command.h"
#include "comm/mpi/load.h"
#include "comm/nccl/nccl.h"
#include "config/libraries.h"
#include "config/memory.h"
#include "core/clock.h"
#include "core/cores.h"
#include "core/cpu.h"
#include "core/text.h"
#include "core/version.h"
#include "data/libraries.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/kernels.h"
#include "ops/libraries.h"
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
  const auto cache = [](int level) { return format_bytes(static_cast<double>(sysconf(level))); };
  if (sysconf(_SC_LEVEL1_DCACHE_SIZE) > 0) {
    line("caches", fmt::format("L1 {}, L2 {}, L3 {}", cache(_SC_LEVEL1_DCACHE_SIZE),
                               cache(_SC_LEVEL2_CACHE_SIZE), cache(_SC_LEVEL3_CACHE_SIZE)));
  }
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
       "the level that is used here; the variable SHOAL_ISA asks for a lower one");
}

void print_memory() {
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

// Memory bandwidth in bytes per second: `threads` threads read 256 MiB; the best of several passes.
double read_bandwidth(int threads) {
  const std::vector<std::uint64_t> data(std::size_t{32} << 20, 1);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  const std::size_t share = data.size() / sums.size();
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    Stopwatch watch;
    {
      std::vector<std::jthread> readers;
      for (std::size_t t = 0; t < sums.size(); ++t) {
        readers.emplace_back([&, t] {
          const auto begin = data.begin() + static_cast<std::ptrdiff_t>(t * share);
          sums[t] += std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(share), std::uint64_t{0});
        });
      }
    }
    best = std::max(best, static_cast<double>(share * sums.size() * sizeof(std::uint64_t)) / watch.seconds());
  }
  return sums.front() > 0 ? best : 0;  // the sums must not be optimised away
}

void print_speed() {
  const int cores = usable_cores();
  double load = 0;  // of the last minute, before the measurements below
  if (getloadavg(&load, 1) != 1) load = 0;
  fmt::print("\nspeed, measured now {:>11}{:>15}\n", "one thread",
             cores > 1 ? fmt::format("{} threads", cores) : "");
  const auto row = [&](const char* name, auto&& measure) {
    fmt::print("  {:<18} {:>10}", name, measure(1));
    if (cores > 1) fmt::print(" {:>14}", measure(cores));
    fmt::print("\n");
  };
  const auto peak = [](DType dtype) {
    return [dtype](int threads) {
      return fmt::format("{:.0f} GFLOP/s", make_cpu_backend(threads)->measure_peak_flops(dtype) / 1e9);
    };
  };
  row("float32", peak(DType::f32));
  row("bfloat16", peak(DType::bf16));
  row("reading memory",
      [](int threads) { return fmt::format("{:.1f} GB/s", read_bandwidth(threads) / 1e9); });
  if (load > 0.5) {
    fmt::print("  Other programs were running (load {:.1f}): alone, the machine is faster.\n", load);
  }
}

void print_libraries() {
  auto libraries = ops_libraries();
  const auto append = [&](std::vector<Library> more) {
    libraries.insert(libraries.end(), more.begin(), more.end());
  };
  append(data_libraries());
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
  const auto mpi = [](const char* name, Launcher::Kind kind, const char* packages, const char* package) {
    const bool built = mpi::has_module(kind);
    line(name, built ? "yes" : "no ",
         built ? "on any number of machines: mpirun -n N shoal train CONFIG"
               : fmt::format("install {} (Debian, Ubuntu) and build again, or the package {}", packages,
                             package));
  };
  mpi("Open MPI", Launcher::Kind::open_mpi, "libopenmpi-dev and openmpi-bin", "shoal-openmpi");
  mpi("MPICH", Launcher::Kind::mpich, "libmpich-dev and mpich", "shoal-mpich");
}

void run_doctor() {
  fmt::print("shoal {}\n\n", kVersion);
  print_processor();
  print_memory();
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
