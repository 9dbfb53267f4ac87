#include "train/layout.h"

#include <algorithm>

#include "core/error.h"
#include "train/memory.h"

namespace shoal {
namespace {

// The largest micro-batch of which a global batch has `count` or more.
int largest_micro_batch(int global_batch, int count) {
  int size = global_batch / count;
  while (global_batch % size != 0) --size;
  return size;
}

int choose_micro_batch(const Config& config, int ranks) {
  constexpr int kRanksThatAgree = 8;
  const int sequences = config.train.global_batch;
  const bool exact = config.run.deterministic == "layout";
  return largest_micro_batch(sequences, exact ? std::min(kRanksThatAgree, sequences) : ranks);
}

}  // namespace

void resolve_layout(Config& config, int ranks) {
  auto& parallel = config.parallel;
  auto& train = config.train;
  const int per_replica = parallel.tensor * parallel.pipeline;
  if (parallel.data != 0 && static_cast<std::int64_t>(parallel.data) * per_replica != ranks) {
    fail_user("parallel.data = {} asks for {} rank{}, but {} started; set parallel.data=0 to take any number",
              parallel.data, parallel.data * per_replica, parallel.data * per_replica == 1 ? "" : "s",
              ranks == 1 ? "one is" : fmt::format("{} are", ranks));
  }
  parallel.data = ranks / per_replica;
  const int data = parallel.data;
  if (data > train.global_batch) {
    fail_user("{} ranks cannot share the {} of a step; start at most {}, or raise train.global_batch", data,
              train.global_batch == 1 ? "one sequence" : fmt::format("{} sequences", train.global_batch),
              train.global_batch);
  }
  if (train.micro_batch == 0) train.micro_batch = choose_micro_batch(config, data);
  if (const int count = train.global_batch / train.micro_batch; data > count) {
    fail_user(
        "{} ranks cannot share the {} of a step (train.global_batch = {}, train.micro_batch = {}); start at "
        "most {}, or set train.micro_batch={}",
        data, count == 1 ? "one micro-batch" : fmt::format("{} micro-batches", count), train.global_batch,
        train.micro_batch, count, largest_micro_batch(train.global_batch, data));
  }
  check_groups(config, data);
}

void check_groups(const Config& config, int data_ranks) {
  const int groups = config.parallel.replicate;
  if (data_ranks % groups == 0) return;
  fail_user("parallel.replicate = {} does not divide the {} data-parallel rank{}; groups are of one size",
            groups, data_ranks, data_ranks == 1 ? "" : "s");
}

EngineOptions engine_options(const Config& config) {
  const auto& optim = config.optim;
  const auto& parallel = config.parallel;
  return {.compute = compute_dtype(config),
          .adamw = {.beta1 = optim.betas[0],
                    .beta2 = optim.betas[1],
                    .eps = optim.eps,
                    .weight_decay = optim.weight_decay},
          .grad_clip = config.train.grad_clip,
          .zero = parallel.zero,
          .replicate = parallel.replicate,
          .layout_exact = config.run.deterministic == "layout",
          .micro_batches = config.train.global_batch / config.train.micro_batch,
          .reduced = parallel.reduce_dtype == "bfloat16" ? DType::bf16 : DType::f32,
          .offload = parallel.offload == "disk" ? config.run.path() : ""};
}

}  // namespace shoal
