#include "train/layout.h"

#include <algorithm>

#include "core/error.h"
#include "parallel/stages.h"
#include "train/memory.h"

namespace shoal {
namespace {

// The largest micro-batch of which a global batch has `count` or more.
int largest_micro_batch(int global_batch, int count) {
  int size = global_batch / count;
  while (global_batch % size != 0) --size;
  return size;
}

int choose_micro_batch(const Config& config, int data_ranks) {
  constexpr int kRanksThatAgree = 8, kPerStage = 4;  // then stages wait a fifth of the step
  const int sequences = config.train.global_batch, stages = config.parallel.pipeline;
  const bool exact = config.run.deterministic == "layout";
  const std::int64_t wanted = exact        ? kRanksThatAgree
                              : stages > 1 ? std::int64_t{kPerStage} * stages * data_ranks
                                           : data_ranks;
  return largest_micro_batch(sequences, static_cast<int>(std::min<std::int64_t>(wanted, sequences)));
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

void resolve_layout(Config& config, int ranks) {
  resolve_mesh(config, ranks);
  auto& train = config.train;
  const int data = config.parallel.data;
  const auto per_model = ranks_of_model(config.parallel);
  const auto cannot_share =
      fmt::format("{}{} ranks cannot share the", data, per_model > 1 ? " data-parallel" : "");
  if (data > train.global_batch) {
    fail_user("{} {} of a step; start at most {}, or raise train.global_batch", cannot_share,
              train.global_batch == 1 ? "one sequence" : fmt::format("{} sequences", train.global_batch),
              train.global_batch * per_model);
  }
  if (train.micro_batch == 0) train.micro_batch = choose_micro_batch(config, data);
  if (const int count = train.global_batch / train.micro_batch; data > count) {
    fail_user(
        "{} {} of a step (train.global_batch = {}, train.micro_batch = {}); start at "
        "most {}, or set train.micro_batch={}",
        cannot_share, count == 1 ? "one micro-batch" : fmt::format("{} micro-batches", count),
        train.global_batch, train.micro_batch, count * per_model,
        largest_micro_batch(train.global_batch, data));
  }
}

void check_groups(const Config& config, int data_ranks) {
  const int groups = config.parallel.replicate;
  if (data_ranks % groups == 0) return;
  fail_user("parallel.replicate = {} does not divide the {} data-parallel rank{}; groups are of one size",
            groups, data_ranks, data_ranks == 1 ? "" : "s");
}

MeshShape mesh_shape(const Config& config) {
  const auto& parallel = config.parallel;
  return {.pipeline = parallel.pipeline, .data = parallel.data, .tensor = parallel.tensor};
}

std::string mesh_text(const Config& config) {
  const auto shape = mesh_shape(config);
  if (ranks_of_model(config.parallel) == 1) return "";
  std::vector<std::string> axes;
  if (shape.pipeline > 1) axes.push_back(fmt::format("{} stages", shape.pipeline));
  if (shape.data > 1) axes.push_back(fmt::format("{} data", shape.data));
  if (shape.tensor > 1) axes.push_back(fmt::format("{} tensor", shape.tensor));
  const bool said = shape.pipeline > 1 && axes.size() == 1;  // stages are ranks
  return fmt::format("{}{}{}", fmt::join(axes, " x "), said ? "" : " ranks",
                     shape.tensor > 1 && config.parallel.sequence ? " with sequence parallelism" : "");
}

void check_mesh(const Config& config, const GptConfig& model) {
  const auto part = model_part(config, model, {});
  const std::int64_t rows = static_cast<std::int64_t>(config.train.micro_batch) * model.block_size;
  check_tensor_group(model, part.tensor, rows);
}

std::vector<UnitRange> unit_ranges(const Config& config, const GptConfig& model) {
  const auto& parallel = config.parallel;
  const int parts = parallel.pipeline * parallel.chunks;
  if (parallel.stages.empty()) return balanced_ranges(model, parts);
  return ranges_by_hand(model, parts, parallel.stages);
}

std::string stage_text(const Config& config, const GptConfig& model, int stage) {
  std::vector<std::string> ranges;
  for (const auto& range : model_part(config, model, {.pipeline = stage}).ranges(model)) {
    ranges.push_back(describe(range, model));
  }
  return fmt::format("{}", fmt::join(ranges, "; "));
}

ModelPart model_part(const Config& config, const GptConfig& model, const MeshPlace& place) {
  const auto shape = mesh_shape(config);
  ModelPart part;
  part.tensor = {
      .rank = place.tensor, .size = shape.tensor, .sequence = config.parallel.sequence && shape.tensor > 1};
  if (shape.pipeline == 1) return part;
  const auto ranges = unit_ranges(config, model);
  for (std::size_t k = place.pipeline; k < ranges.size(); k += shape.pipeline)
    part.chunks.push_back(ranges[k]);
  return part;
}

EngineOptions engine_options(const Config& config, const GptConfig& model, const MeshPlace& place) {
  const auto& optim = config.optim;
  const auto& parallel = config.parallel;
  return {.part = model_part(config, model, place),
          .compute = compute_dtype(config),
          .adamw = {.beta1 = optim.betas[0],
                    .beta2 = optim.betas[1],
                    .eps = optim.eps,
                    .weight_decay = optim.weight_decay,
                    .l2 = optim.name == "accum_adam",
                    .accum_steps = optim.accum_steps},
          .grad_clip = config.train.grad_clip,
          .zero = parallel.zero,
          .replicate = parallel.replicate,
          .layout_exact = config.run.deterministic == "layout",
          .micro_batches = config.train.global_batch / config.train.micro_batch,
          .reduced = parallel.reduce_dtype == "bfloat16" ? DType::bf16 : DType::f32,
          .offload = parallel.offload == "disk" ? config.run.path() : ""};
}

PipelineOptions pipeline_options(const Config& config, const GptConfig& model, const MeshPlace& place) {
  const auto shape = mesh_shape(config);
  const int micro_batches = config.train.global_batch / config.train.micro_batch;
  return {.batch = {config.train.micro_batch, model.block_size},
          .compute = compute_dtype(config),
          .recompute = config.train.recompute == "block" ? Recompute::block : Recompute::none,
          .part = model_part(config, model, place),
          .schedule = parse_schedule(config.parallel.schedule),
          .stages = shape.pipeline,
          .micro_batches = (micro_batches + shape.data - 1) / shape.data};
}

}  // namespace shoal
