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

int choose_micro_batch(const Config& config, int ranks) {
  constexpr int kRanksThatAgree = 8;
  const int sequences = config.train.global_batch;
  const bool exact = config.run.deterministic == "layout";
  return largest_micro_batch(sequences, exact ? std::min(kRanksThatAgree, sequences) : ranks);
}

}  // namespace

void resolve_mesh(Config& config, int ranks) {
  auto& parallel = config.parallel;
  const auto text = [](int n) { return n == 1 ? std::string("1 rank") : fmt::format("{} ranks", n); };
  const std::int64_t per_model = static_cast<std::int64_t>(parallel.tensor) * parallel.pipeline;
  const auto model_text =
      fmt::format("parallel.pipeline = {} x parallel.tensor = {}", parallel.pipeline, parallel.tensor);
  if (parallel.data != 0 && parallel.data * per_model != ranks) {
    fail_user("parallel.data = {}{} asks for {}, but {} started; set parallel.data=0 to take any number",
              parallel.data, per_model == 1 ? "" : " x " + model_text,
              text(static_cast<int>(parallel.data * per_model)),
              ranks == 1 ? "one is" : fmt::format("{} are", ranks));
  }
  if (ranks % per_model != 0) {
    fail_user("{} ask for a multiple of {}, but {} started; start another number, or change one of them",
              model_text, text(static_cast<int>(per_model)),
              ranks == 1 ? "one is" : fmt::format("{} are", ranks));
  }
  parallel.data = static_cast<int>(ranks / per_model);
  check_groups(config, parallel.data);
}

void resolve_layout(Config& config, int ranks) {
  resolve_mesh(config, ranks);
  auto& train = config.train;
  const int data = config.parallel.data;
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

void check_mesh(const Config& config, const GptConfig& model) {
  const auto shape = mesh_shape(config);
  const TensorPlace tensor{.size = shape.tensor, .sequence = config.parallel.sequence && shape.tensor > 1};
  const std::int64_t rows = static_cast<std::int64_t>(config.train.micro_batch) * model.block_size;
  check_tensor_group(model, tensor, rows);
  model_part(config, model, {});
}

ModelPart model_part(const Config& config, const GptConfig& model, const MeshPlace& place) {
  const auto shape = mesh_shape(config);
  ModelPart part;
  part.tensor = {
      .rank = place.tensor, .size = shape.tensor, .sequence = config.parallel.sequence && shape.tensor > 1};
  if (shape.pipeline == 1) return part;
  const int chunks = config.parallel.chunks;
  const auto ranges = balanced_ranges(model, shape.pipeline * chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    part.chunks.push_back(ranges[static_cast<std::size_t>(chunk * shape.pipeline + place.pipeline)]);
  }
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
                    .weight_decay = optim.weight_decay},
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
