#include "config/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "config/layout.h"
#include "config/optimizer_schemes.h"
#include "core/error.h"
#include "parallel/pipeline/stages.h"

namespace shoal {
namespace {

std::vector<UnitRange> stage_ranges(const ParallelConfig& parallel, const GptConfig& model) {
  if (parallel.pipeline == 1) return {};
  const int parts = parallel.pipeline * parallel.chunks;
  if (parallel.stages.empty()) return balanced_ranges(model, parts);
  return ranges_by_hand(model, parts, parallel.stages);
}

std::optional<OuterOptions> outer_options(const Config& config, const GptConfig& model) {
  const auto& outer = config.outer;
  if (outer.interval == 0) return std::nullopt;
  std::vector<int> fragment_of;
  if (outer.fragments > 1) fragment_of = deal_fragments(gpt_units(model), outer.fragments);
  return OuterOptions{.interval = outer.interval,
                      .lr = outer.lr,
                      .momentum = outer.momentum,
                      .nesterov = outer.nesterov,
                      .sent = outer_sent(outer.compress).value(),
                      .fragment_of = std::move(fragment_of),
                      .overlap = outer.overlap,
                      .own_share = outer.own_share};
}

std::optional<GossipOptions> gossip_options(const Config& config) {
  if (config.parallel.engine != EngineKind::gossip) return std::nullopt;
  return GossipOptions{.topology = gossip_topology(config),
                       .bucket_bytes = config.gossip.bucket_mib * (1 << 20),
                       .clip_by_bucket = config.gossip.clip == GossipClip::bucket};
}

void check_tensor_group(const RunPlan& plan) {
  const int ranks = plan.mesh.tensor;
  if (const auto limit = tensor_limit(plan.model); ranks > limit.ranks) {
    fail_user("parallel.tensor = {} ranks cannot share {} {}; use at most {}", ranks, limit.ranks, limit.part,
              limit.ranks);
  }
  if (const auto tokens = plan.pipeline.batch.rows(); plan.sequence && tokens % ranks != 0) {
    fail_user(
        "parallel.sequence: the {} tokens of a micro-batch do not divide over parallel.tensor = {} ranks; "
        "choose another train.micro_batch, or parallel.sequence=false",
        tokens, ranks);
  }
}

}  // namespace

ModelPart RunPlan::part(const MeshCoordinate& coordinate) const {
  ModelPart part;
  part.tensor = {.rank = coordinate.tensor, .size = mesh.tensor, .sequence = sequence};
  for (std::size_t k = coordinate.pipeline; k < ranges.size(); k += mesh.pipeline)
    part.chunks.push_back(ranges[k]);
  return part;
}

EngineOptions RunPlan::engine_options(const MeshCoordinate& coordinate) const {
  auto options = engine;
  options.part = part(coordinate);
  return options;
}

PipelineOptions RunPlan::pipeline_options(const MeshCoordinate& coordinate) const {
  auto options = pipeline;
  options.part = part(coordinate);
  return options;
}

// A rank's inputs of a layer that is divided by inputs have to begin on a vector of the dropout's mask.
static void check_adapters(const RunPlan& plan) {
  const auto& model = plan.model;
  const bool by_inputs = model.lora.on(Linear::attn_c_proj) || model.lora.on(Linear::mlp_c_proj);
  if (plan.mesh.tensor == 1 || !by_inputs || model.lora.dropout == 0) return;
  if (model.head_size() % 16 == 0 && 4 * model.n_embd % 16 == 0) return;
  fail_user(
      "lora.dropout on attn.c_proj or mlp.c_proj needs heads of a multiple of 16 channels with "
      "parallel.tensor = {}, not {}; set lora.dropout=0, or leave these layers out of lora.targets",
      plan.mesh.tensor, model.head_size());
}

// A packed message is a movement; only whole models draw those of a group's members together.
static void check_outer(const RunPlan& plan, const Config& config) {
  const auto& engine = plan.engine;
  if (!engine.outer || engine.outer->sent.kind == OuterSent::Kind::all) return;
  if (!engine.gossip || engine.gossip->topology.is_complete()) return;
  fail_user(
      "outer.compress = \"{}\" needs gossip.topology=complete, since workers that average in the groups of "
      "\"{}\" send each other whole models; set that, or outer.compress=none",
      config.outer.compress, config.gossip.topology);
}

// No timed choices: hosts without a shared cache, or another run, could choose other algorithms.
static bool may_tune(const Config& config) {
  return config.run.deterministic != Determinism::layout && config.run.verify == 0;
}
static bool is_ordered(const Config& config) {
  return config.run.deterministic != Determinism::off || config.run.verify > 0;
}

RunPlan make_plan(const Config& config, const GptConfig& model) {
  const auto& train = config.train;
  const auto& parallel = config.parallel;
  if (parallel.data == 0 || train.micro_batch == 0) fail("a plan needs a resolved layout");
  const int workers = worker_count(config);
  RunPlan plan{.model = model,
               .backend = train.backend,
               .threads = train.threads,
               .exchange = parallel.gpu_exchange,
               .mesh = {.pipeline = parallel.pipeline,
                        .data = parallel.data / workers,
                        .tensor = parallel.tensor,
                        .workers = workers},
               .sequence = parallel.sequence && parallel.tensor > 1,
               .sampled_texts = std::min(config.eval.samples, static_cast<int>(kFewRows)),
               .memory_checkpoints = config.checkpoint.memory,
               .graph = train.graph,
               .tune = may_tune(config),
               .ordered = is_ordered(config),
               .tf32 = train.tf32,
               .ranges = stage_ranges(parallel, model)};
  const int micro_batches = train.global_batch / train.micro_batch / workers;
  plan.engine = {.compute = train.dtype,
                 .optimizer = scheme_of(config.optim.name).options(config.optim),
                 .decay = config.optim.decay,
                 .ema = config.optim.ema,
                 .grad_clip = train.grad_clip,
                 .zero = parallel.zero,
                 .replicate = parallel.replicate,
                 .layout_exact = config.run.deterministic == Determinism::layout,
                 .micro_batches = micro_batches,
                 .gradients = train.gradient_dtype,
                 .reduced = parallel.reduce_dtype,
                 .offload = parallel.offload == Offload::disk ? config.run.path() : "",
                 .on_host = train.backend == BackendKind::cuda && parallel.offload != Offload::none,
                 .gossip = gossip_options(config),
                 .outer = outer_options(config, model)};
  plan.pipeline = {.batch = {train.micro_batch, model.block_size},
                   .compute = train.dtype,
                   .stream = train.residual_dtype,
                   .logits = logits_plan(train.backend, train.dtype),
                   .recompute = train.recompute,
                   .recompute_blocks = train.recompute_blocks,
                   .schedule = parallel.schedule,
                   .stages = parallel.pipeline,
                   .micro_batches = 1 + (micro_batches - 1) / plan.mesh.data};
  check_tensor_group(plan);
  check_adapters(plan);
  check_outer(plan, config);
  return plan;
}

RunPlan make_plan(const Config& config) { return make_plan(config, to_gpt_config(config)); }

static BackendOptions backend_options(BackendKind kind, int threads, const World& world) {
  BackendOptions options{.threads = threads, .local_rank = world.local_rank};
  if (kind == BackendKind::cpu) options.cpu_level = common_cpu_level(world.ranks);
  return options;
}

BackendOptions backend_options(const RunPlan& plan, int threads, const World& world) {
  auto options = backend_options(plan.backend, threads, world);
  options.tune = plan.tune;
  options.ordered = plan.ordered;
  options.tf32 = plan.tf32;
  return options;
}

BackendOptions backend_options(const Config& config, const World& world) {
  const auto& train = config.train;
  auto options = backend_options(train.backend, train.threads > 0 ? train.threads : world.cores, world);
  options.tf32 = train.tf32;
  options.tune = may_tune(config);
  options.ordered = is_ordered(config);
  return options;
}

std::string types_text(const RunPlan& plan) {
  std::string text(name_of(plan.engine.compute));
  std::string_view before = " with ";
  const auto add = [&](DType type, std::string_view what) {
    if (type == DType::f32) return;
    text += fmt::format("{}{}", std::exchange(before, " and "), what);
  };
  add(plan.pipeline.stream, "residual stream");
  add(plan.engine.gradients, "gradients");
  return text;
}

std::string mesh_text(const RunPlan& plan) { return mesh_text(plan.mesh, plan.sequence); }

std::string mesh_text(const MeshShape& mesh, bool sequence) {
  if (mesh.tensor * mesh.pipeline == 1 && mesh.workers == 1) return "";
  std::vector<std::string> axes;
  if (mesh.workers > 1) axes.push_back(fmt::format("{} workers", mesh.workers));
  if (mesh.pipeline > 1) axes.push_back(fmt::format("{} stages", mesh.pipeline));
  if (mesh.data > 1) axes.push_back(fmt::format("{} data", mesh.data));
  if (mesh.tensor > 1) axes.push_back(fmt::format("{} tensor", mesh.tensor));
  const bool said = axes.size() == 1 && (mesh.pipeline > 1 || mesh.workers > 1);  // they are ranks
  return fmt::format("{}{}{}", fmt::join(axes, " x "), said ? "" : " ranks",
                     sequence ? " with sequence parallelism" : "");
}

std::string stage_text(const RunPlan& plan, int stage) {
  std::vector<std::string> ranges;
  for (const auto& range : plan.part({.pipeline = stage}).ranges(plan.model)) {
    ranges.push_back(describe(range, plan.model));
  }
  return fmt::format("{}", fmt::join(ranges, "; "));
}

}  // namespace shoal
