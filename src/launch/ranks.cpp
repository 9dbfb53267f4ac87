#include "launch/ranks.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "config/layout.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/log.h"
#include "ops/cuda/cuda.h"

namespace shoal {
namespace {

constexpr int kMostThreads = 4096;

std::string count(int ranks) { return ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks); }

// The largest number of ranks, up to the cores or GPUs, that makes whole models or whole workers of gossip.
int ranks_for_all(const Config& config) {
  const bool gpus = config.train.backend == BackendKind::cuda;
  const auto all = gpus ? std::ssize(cuda_devices()) : usable_cores();
  const std::int64_t unit = (config.parallel.engine == EngineKind::gossip ? config.gossip.worker_size : 1) *
                            ranks_of_model(config.parallel);
  return static_cast<int>(std::max(all / unit, std::int64_t{1}) * unit);
}

[[noreturn]] void refuse_tasks(const Launcher& launch) {
  if (launch.task > 0) throw StoppedByPeer();  // task 0 reports
  fail_user(
      "srun started {} tasks that cannot find each other; choose an MPI: srun --mpi=pmix (Open MPI) or "
      "srun --mpi=pmi2 (MPICH)",
      launch.tasks);
}

}  // namespace

Launcher launcher_of(int asked) {
  const auto launch = detect_launcher();
  return launch.ranks == 1 && asked != 0 ? Launcher{} : launch;
}

int ranks_to_start(const Config& config, int asked, const Launcher& launch) {
  const bool launched = launch.kind != Launcher::Kind::alone;
  if (launched && asked > 0 && asked != launch.ranks) {
    fail_user("--ranks {} was given, but {} started {}; leave --ranks out, or let {} start {}", asked,
              launch.name, count(launch.ranks), launch.name, count(asked));
  }
  const int started = launched ? launch.ranks : asked == kAllRanks ? ranks_for_all(config) : asked;
  const auto& parallel = config.parallel;
  if (started > 0) {
    check_ranks(parallel, started, launched ? launch.name : "--ranks");
    return started;
  }
  const std::int64_t wanted =
      std::max(parallel.data, config.parallel.engine == EngineKind::gossip ? config.gossip.worker_size : 1) *
      ranks_of_model(parallel);
  if (wanted > std::numeric_limits<int>::max()) fail_user("[parallel] asks for {} ranks, too many", wanted);
  return static_cast<int>(wanted);
}

void with_job(int asked, const std::function<Config()>& load,
              const std::function<void(const Config&, const Job&)>& body) {
  const Launcher launch = launcher_of(asked);
  if (launch.kind == Launcher::Kind::alone) {
    if (launch.tasks > 1) refuse_tasks(launch);
    const Config config = load();
    return body(config, {.ranks = ranks_to_start(config, asked, launch)});
  }
  // A mistake in the config is thrown inside the run, where one rank reports what all ranks find.
  Config config;
  std::exception_ptr mistake;
  try {
    config = load();
    ranks_to_start(config, asked, launch);
  } catch (...) {
    mistake = std::current_exception();
  }
  try {
    run_mpi({.deadline_seconds = config.parallel.timeout}, [&](World& world) {
      log::mute_thread(world.ranks.rank() != 0);
      if (mistake) std::rethrow_exception(mistake);
      body(config, {.ranks = world.ranks.size(), .world = &world});
    });
  } catch (const MpiUnavailable& error) {
    fail_user("{}. Or start `--ranks {}` without {}: ranks as threads need no MPI", error.what(),
              launch.ranks, launch.name);
  }
}

void run_ranks(const Config& config, const Job& job, const std::function<void(const Config&, World&)>& body) {
  if (job.world) return body(config, *job.world);
  if (job.ranks > kMostThreads) {
    fail_user("{} as threads of one process are too many; at most {} are possible", count(job.ranks),
              kMostThreads);
  }
  run_threads({.ranks = job.ranks, .deadline_seconds = config.parallel.timeout},
              [&](World& world) { body(config, world); });
}

void with_ranks(int asked, const std::function<Config()>& load,
                const std::function<void(const Config&, World&)>& body) {
  with_job(asked, load, [&](const Config& config, const Job& job) { run_ranks(config, job, body); });
}

}  // namespace shoal
