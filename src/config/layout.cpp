#include "config/layout.h"
#include "parallel/gossip/topology_schemes.h"

#include <algorithm>

#include "config/follow.h"
#include "core/error.h"

namespace shoal {
namespace {

// `sequences`: those of one worker in a step.
int choose_micro_batch(const Config& config, int sequences, int data_ranks) {
  constexpr int kRanksThatAgree = 8;  // with layout determinism, up to 8 ranks get a micro-batch each
  constexpr int kPerStage = 4;        // pipeline stages then idle for a fifth of the step
  const int stages = config.parallel.pipeline;
  const bool exact = config.run.deterministic == Determinism::layout;
  const std::int64_t wanted = exact        ? kRanksThatAgree
                              : stages > 1 ? std::int64_t{kPerStage} * stages * data_ranks
                                           : data_ranks;
  return largest_micro_batch(sequences, static_cast<int>(std::min<std::int64_t>(wanted, sequences)),
                             sequences);
}

// Arguments that let `ranks` ranks share the global batch, "parallel.tensor=4": the fewest stages, then the
// fewest tensor ranks, that suffice. "" where none do.
std::string wider_mesh(const Config& config, int ranks) {
  const auto& parallel = config.parallel;
  for (int stages = parallel.pipeline; stages <= config.model.n_layer; ++stages) {
    if (stages > parallel.pipeline && (!parallel.stages.empty() || parallel.chunks > 1)) break;
    for (int tensor = parallel.tensor; tensor <= config.model.n_head; ++tensor) {
      const int per_model = stages * tensor;
      if (ranks % per_model != 0 || ranks / per_model > config.train.global_batch) continue;
      std::string text;
      if (tensor > 1) text += fmt::format("parallel.tensor={}", tensor);
      if (stages > 1) text += fmt::format("{}parallel.pipeline={}", text.empty() ? "" : " ", stages);
      return text;
    }
  }
  return "";
}

// The number of workers per node. On a single host: the topology's default.
int workers_on_node(const Config& config, int ranks, int ranks_per_host) {
  const int workers = worker_count(config);
  if (ranks_per_host == 0 || ranks_per_host >= ranks) {
    return default_per_node(config.gossip.topology, workers);
  }
  return std::max(1, ranks_per_host / (ranks / workers));
}

}  // namespace

std::int64_t ranks_of_model(const ParallelConfig& parallel) {
  return static_cast<std::int64_t>(parallel.tensor) * parallel.pipeline;
}

void check_ranks(const ParallelConfig& parallel, int ranks, std::string_view by) {
  const std::int64_t per_model = ranks_of_model(parallel);
  const auto count = [](std::int64_t n) { return n == 1 ? "1 rank" : fmt::format("{} ranks", n); };
  const auto started = by.empty() ? fmt::format("{} {} started", ranks, ranks == 1 ? "is" : "are")
                                  : fmt::format("{} started {}", by, count(ranks));
  // "parallel.tensor = 2 x parallel.pipeline = 4"
  std::vector<std::string> factors;
  const auto add = [&](const char* key, int value) {
    if (value > 1) factors.push_back(fmt::format("parallel.{} = {}", key, value));
  };
  if (parallel.data != 0 && parallel.data * per_model != ranks) {
    factors.push_back(fmt::format("parallel.data = {}", parallel.data));
    add("tensor", parallel.tensor);
    add("pipeline", parallel.pipeline);
    fail_user("{} ask{} for {}, but {}; set parallel.data=0 to take any {}", fmt::join(factors, " x "),
              factors.size() == 1 ? "s" : "", count(parallel.data * per_model), started,
              per_model == 1 ? "number" : fmt::format("multiple of {}", per_model));
  }
  if (ranks % per_model == 0) return;
  add("tensor", parallel.tensor);
  add("pipeline", parallel.pipeline);
  const std::int64_t below = ranks / per_model * per_model;
  fail_user("{} ask{} for a multiple of {} ranks, but {}; start {}{}, or change {}",
            fmt::join(factors, " x "), factors.size() == 1 ? "s" : "", per_model, started,
            below > 0 ? fmt::format("{} or ", below) : "", below + per_model,
            factors.size() == 1 ? "it" : "one of them");
}

void resolve_mesh(Config& config, int ranks) {
  check_ranks(config.parallel, ranks);
  config.parallel.data = static_cast<int>(ranks / ranks_of_model(config.parallel));
  check_groups(config, config.parallel.data);
}

void resolve_layout(Config& config, int ranks, int ranks_per_host) {
  resolve_mesh(config, ranks);
  auto& train = config.train;
  const int workers = worker_count(config);
  if (workers > 1) {
    auto& on_node = config.gossip.local_size;
    if (on_node == 0) on_node = workers_on_node(config, ranks, ranks_per_host);
    gossip_topology(config);
  }
  const int data = config.parallel.data;
  follow_ranks(config, workers, data / workers);
  // Gradients of workers have equal weight.
  if (workers > 1) check_shares(config, workers, "workers");
  const auto per_model = ranks_of_model(config.parallel);
  const auto cannot_share =
      fmt::format("{}{} ranks cannot share the", data, per_model > 1 ? " data-parallel" : "");
  if (data > train.global_batch) {
    const auto mesh = wider_mesh(config, ranks);
    fail_user("{} {} of a step; start at most {}, or give the step more: train.global_batch={}{}",
              cannot_share,
              train.global_batch == 1 ? "one sequence" : fmt::format("{} sequences", train.global_batch),
              train.global_batch * per_model, data,
              mesh.empty() ? "" : fmt::format(", or let several ranks share a sequence: {}", mesh));
  }
  if (train.micro_batch == 0) {
    train.micro_batch = choose_micro_batch(config, train.global_batch / workers, data / workers);
  }
  if (const int count = train.global_batch / train.micro_batch; data > count) {
    fail_user(
        "{} {} of a step (train.global_batch = {}, train.micro_batch = {}); start at "
        "most {}, or set train.micro_batch={}",
        cannot_share, count == 1 ? "one micro-batch" : fmt::format("{} micro-batches", count),
        train.global_batch, train.micro_batch, count * per_model,
        largest_micro_batch(train.global_batch / workers, data / workers, train.global_batch));
  }
}

void check_shares(const Config& config, int count, std::string_view shares) {
  const auto& train = config.train;
  if (const int batch = train.global_batch; batch % count != 0) {
    const int below = batch / count * count;
    fail_user("train.global_batch = {} cannot be divided evenly among {} {}; set it to {}{}", batch, count,
              shares, below > 0 ? fmt::format("{} or ", below) : "", below + count);
  }
  if (train.micro_batch == 0 || train.global_batch / train.micro_batch % count == 0) return;
  fail_user(
      "{} micro-batches of a step (train.global_batch = {}, train.micro_batch = {}) cannot be divided evenly "
      "among {} {}; set train.micro_batch={}",
      train.global_batch / train.micro_batch, train.global_batch, train.micro_batch, count, shares,
      largest_micro_batch(train.global_batch / count, 1, train.micro_batch));
}

void check_groups(const Config& config, int data_ranks) {
  const bool gossip = config.parallel.engine == EngineKind::gossip;
  const auto ranks_text = [](int ranks) {
    return fmt::format("{} data-parallel rank{}", ranks, ranks == 1 ? "" : "s");
  };
  const int size = gossip ? config.gossip.worker_size : data_ranks, groups = config.parallel.replicate;
  if (data_ranks % size != 0) {
    fail_user("gossip.worker_size = {} does not divide the {}; workers are of one size", size,
              ranks_text(data_ranks));
  }
  if (size % groups == 0) return;
  fail_user("parallel.replicate = {} does not divide the {}{}; groups are of one size", groups,
            ranks_text(size), gossip ? " of a worker" : "");
}

int worker_count(const Config& config) {
  return config.parallel.engine == EngineKind::gossip ? config.parallel.data / config.gossip.worker_size : 1;
}

Topology gossip_topology(const Config& config) {
  return find_topology(config.gossip.topology, worker_count(config), config.gossip.local_size);
}

}  // namespace shoal
