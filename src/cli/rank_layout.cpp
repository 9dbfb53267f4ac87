#include "cli/rank_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/planning.h"
#include "cli/sizes.h"
#include "config/memory.h"
#include "config/schema.h"
#include "core/error.h"
#include "planner/search.h"
#include "planner/typical_cpu.h"

namespace shoal::cli {
namespace {

// Hosts like this one, whose memory is as free now as it will be.
DescribedMachine typical_hosts(int ranks, int ranks_per_host) {
  constexpr double kUnknownMemory = 1e15;
  auto cluster = typical_cpu_cluster();
  cluster.devices_per_host = ranks_per_host > 0 ? ranks_per_host : ranks;
  cluster.memory = available_memory() / cluster.devices_per_host;
  if (cluster.memory == 0) cluster.memory = kUnknownMemory;
  cluster.inside = {.latency = 5e-6, .bandwidth = 5e9};
  cluster.between = {.latency = 5e-5, .bandwidth = 1e9};
  return DescribedMachine(cluster);
}

// Gives the mesh to the planner, except for the parts that would change an exact run's bits.
void free_mesh(Config& config) {
  auto& parallel = config.parallel;
  for (const char* key : {"data", "pipeline", "chunks", "schedule", "stages", "replicate"})
    config.given.erase(fmt::format("parallel.{}", key));
  parallel.stages.clear();
  parallel.replicate = 1;
  if (config.train.recompute_blocks.size() > 1) {
    config.train.recompute_blocks.clear();
    config.given.erase("train.recompute_blocks");
  }
  for (const char* key : {"parallel.tensor", "parallel.sequence"}) {
    if (config.run.deterministic == Determinism::layout) {
      config.given.insert(key);
    } else {
      config.given.erase(key);
    }
  }
}

std::vector<std::string> settings_of(const Config& config) {
  std::vector<std::string> settings;
  for (const char* key :
       {"parallel.data", "parallel.pipeline", "parallel.tensor", "parallel.sequence", "parallel.chunks",
        "parallel.schedule", "parallel.stages", "parallel.zero", "parallel.replicate", "train.micro_batch",
        "train.recompute", "train.recompute_blocks"}) {
    settings.push_back(fmt::format("{}={}", key, find_field(key)->value(config)));
  }
  return settings;
}

}  // namespace

RankLayout layout_of_ranks(const RunToRestart& run, int ranks, int ranks_per_host) {
  auto own = run.layout(ranks, ranks_per_host);
  auto config = run.config();
  const bool plans_itself = config.parallel.plan == PlanKind::automatic;
  // The memory of other hosts' GPUs is not known here, and a worker of gossip keeps its size.
  const bool cannot_plan = config.train.backend != BackendKind::cpu || run.ranks_of_worker() > 0;
  if (cannot_plan || (own.objection.empty() && !plans_itself)) return own;
  RankLayout planned;
  try {
    if (plans_itself) {
      planned.settings = settings_to_keep(config, ranks);
      apply_arguments(config, planned.settings);
    } else {
      free_mesh(config);
    }
    resolve_vocabulary(config);
    auto machine = typical_hosts(ranks, ranks_per_host);
    const auto found = search_plans(config, ranks, machine);
    if (found.plans.empty()) {
      planned.objection = fmt::format("no layout of {} ranks fits a host's memory", ranks);
    } else if (!plans_itself) {
      const auto& best = found.plans.front();
      planned.settings = settings_of(best.config);
      planned.mesh = mesh_text(best.plan);
    }
  } catch (const Error& error) {
    planned.objection = error.what();
  }
  return planned.objection.empty() || plans_itself ? planned : own;
}

}  // namespace shoal::cli
