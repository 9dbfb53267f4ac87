#include "cli/sizes.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/log.h"
#include "core/text.h"
#include "data/dataset.h"
#include "train/remedies.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGpt2Vocabulary = 50257;

double mapped_bytes(const fs::path& data) {
  double bytes = 0;
  for (const char* split : {"train.bin", "val.bin"}) {
    std::error_code error;
    const auto size = fs::file_size(data / split, error);
    if (!error) bytes += static_cast<double>(size);
  }
  return bytes;
}

// Describes how the data ranks (with gossip, those of a worker) shard the state.
std::string sharding_text(const RunPlan& plan) {
  const auto& engine = plan.engine;
  static constexpr const char* kWords[] = {
      "every rank holds all parameters, gradients and moments",
      "moments and master weights sharded over {}; parameters and gradients whole",
      "moments, master weights and gradients sharded over {}; parameters whole",
      "everything sharded over {}; a unit's parameters are gathered while it is used"};
  const bool mesh = plan.ranks_of_model() > 1, workers = plan.mesh.workers > 1;
  const int replicas = engine.zero == 0 ? 1 : engine.replicate, data = plan.mesh.data;
  const auto ranks = [&](int n) {
    return fmt::format("{} {}ranks{}", n, mesh ? "data " : "", workers ? " of a worker" : "");
  };
  const auto over =
      replicas == 1 ? ranks(data) : fmt::format("{} ({} replicas)", ranks(data / replicas), replicas);
  return fmt::format("ZeRO-{}: {}{}", engine.zero, mesh ? "of its part of the model, " : "",
                     fmt::format(fmt::runtime(kWords[engine.zero]), over));
}

// The state that parallel.offload moves.
std::string offloaded_text(const RunPlan& plan) {
  std::string text = "master weights, moments";
  if (plan.engine.zero >= 2) text += ", sharded gradients";
  if (plan.engine.zero == 3 && plan.backend == BackendKind::cuda) text += ", sharded parameters";
  return text;
}

void print_state(const RunPlan& plan, const MemoryEstimate& memory, int ranks) {
  const auto part = [](const std::string& name, double bytes, const std::string& remark) {
    if (bytes > 0) print_line(name, format_bytes(bytes), remark);
  };
  const int zero = plan.mesh.data > 1 ? plan.engine.zero : 0;
  const std::string dtype(name_of(plan.engine.compute));
  part("weights", memory.weights,
       zero > 0 && memory.compute_copy > 0 ? "float32, this rank's part" : "float32");
  part("weights for products", memory.compute_copy, zero == 3 ? dtype + ", of the units in use" : dtype);
  const std::string gradients(name_of(plan.engine.gradients));
  part("gradients", memory.gradients,
       zero < 2 ? gradients
       : plan.engine.gradients == DType::f32
           ? gradients + ", this rank's part and those of the units in use"
           : gradients + " of the units in use, this rank's part in float32");
  part("optimizer", memory.optimizer,
       fmt::format("{}, float32{}", optimizer_text(plan), zero > 0 ? ", this rank's part" : ""));
  const std::string exchange = plan.mesh.workers > 1 && !plan.engine.outer
                                   ? "the copy that is averaged, sums for the norm"
                               : ranks > 1 ? "buffers between ranks, sums for the norm"
                                           : "sums for the gradient's norm";
  const bool matrices = make_optimizer(plan.engine.optimizer)->takes_whole_matrices();
  part("exchange", memory.exchange, exchange + (matrices ? ", one whole matrix" : ""));
  part("streaming", memory.streaming, "float32, on the GPU: buffers for offloaded tensors");
  part("at rest on the host", memory.on_host,
       plan.on_disk() ? "pinned: buffers between the GPU and the file"
                      : fmt::format("pinned: {}", offloaded_text(plan)));
  part("on disk", memory.on_disk, fmt::format("beside the total: {}", offloaded_text(plan)));
}

// Memory per stage, of the rank that needs most.
void print_stages(const RunPlan& plan, const RankCounts& ranks) {
  const auto stages = estimate_stages(plan, ranks);
  for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
    print_line(fmt::format("stage {}", stage), format_bytes(stages[static_cast<std::size_t>(stage)].total()),
               stage_text(plan, stage));
  }
}

}  // namespace

void note_automatic_plan(const Config& config) {
  if (config.parallel.plan == PlanKind::manual) return;
  log::info(
      "parallel.plan = \"auto\" chooses the layout when the run starts (shoal plan shows it); the layout "
      "here is that of the config");
}

void print_line(const std::string& name, const std::string& value, const std::string& remark) {
  fmt::print("  {:<24} {:>16}{}{}\n", name, value, remark.empty() ? "" : "  ", remark);
}

std::string optimizer_text(const RunPlan& plan) {
  std::string text(make_optimizer(plan.engine.optimizer)->state_text());
  if (plan.engine.ema > 0) text += ", a moving average";
  if (plan.engine.outer) text += ", the outer optimizer's tensors";
  return text;
}

std::string flops_text(double flops) {
  auto text = format_count(flops);
  const auto digits = text.find_last_of("0123456789") + 1;
  return text.insert(digits, " ") + "FLOP";
}

std::string resolve_vocabulary(Config& config) {
  auto& size = config.model.vocab_size;
  if (size > 0) return "model.vocab_size";
  const auto dir = config.data.sources().begin()->first;  // all have one vocabulary
  if (fs::exists(dir)) {
    size = with_remedy([&] { return Dataset(dir).vocab_size(); });
    return dir;
  }
  size = kGpt2Vocabulary;
  return fmt::format("GPT-2's: there is no {} yet; model.vocab_size=N sets another", dir);
}

std::string describe(const GptConfig& model, const std::string& vocabulary_source) {
  return fmt::format("{} layers, {} heads, width {}, block {}, vocabulary {} ({})", model.n_layer,
                     model.n_head, model.n_embd, model.block_size, with_commas(model.vocab_size),
                     vocabulary_source);
}

// A tensor's entry in a safetensors header has about 80 bytes plus its name.
double parameter_file_bytes(const std::vector<UnitSpec>& units) {
  double bytes = 0;
  for (const auto& unit : units) {
    for (const auto& parameter : unit.parameters) {
      bytes += 4.0 * static_cast<double>(parameter.shape.count()) + 80.0 +
               static_cast<double>(parameter.name.size());
    }
  }
  return bytes;
}

const char* recompute_text(const PipelineOptions& options) {
  const auto recompute = options.recompute;
  if (!options.recompute_blocks.empty()) return "some blocks are recomputed (train.recompute_blocks)";
  if (recompute == Recompute::block) return "of one block; the others are recomputed";
  if (recompute == Recompute::light) return "outputs of norms and GELU are recomputed; =block keeps less";
  if (recompute == Recompute::gelu) return "outputs of GELU are recomputed; =light keeps less";
  return "train.recompute=light keeps less, =block one block's";
}

void print_memory(const RunPlan& plan, const DataConfig& data, const RankCounts& ranks) {
  const auto& pipeline = plan.pipeline;
  const auto memory = estimate_memory(plan, ranks);
  const bool mesh = plan.ranks_of_model() > 1;
  fmt::print("\nmemory of training{}, micro-batches of {} x {} tokens, {}, recompute {}\n",
             mesh                   ? fmt::format(" on the one of {} ranks that needs most", ranks.world_size)
             : ranks.world_size > 1 ? fmt::format(" on one of {} ranks", ranks.world_size)
                                    : "",
             pipeline.batch.batch, pipeline.batch.positions, name_of(pipeline.compute),
             name_of(pipeline.recompute));
  if (const auto text = mesh_text(plan); !text.empty()) fmt::print("  {}\n", text);
  if (plan.mesh.data > 1) fmt::print("  {}\n", sharding_text(plan));
  print_state(plan, memory, ranks.world_size);
  print_line("activations: blocks", format_bytes(memory.blocks), recompute_text(pipeline));
  print_line("activations: stream", format_bytes(memory.streams),
             fmt::format("{}, between the blocks", name_of(pipeline.stream)));
  print_line("activations: workspace", format_bytes(memory.workspace), "gradients of activations");
  if (memory.head > 0) {
    print_line("activations: head", format_bytes(memory.head), "one chunk of logits, never all");
  }
  if (memory.texts > 0) print_line("texts of evaluations", format_bytes(memory.texts), "eval.samples");
  print_line("batches", format_bytes(memory.batches), "token ids, read ahead");
  if (memory.scratch > 0) {
    print_line("kernels' scratch", format_bytes(memory.scratch),
               plan.backend == BackendKind::cuda ? "of cuBLASLt" : "tiles of attention, partial sums");
  }
  print_line("checkpoint", format_bytes(memory.checkpoint), "the copy that is written in the background");
  if (memory.in_memory > 0)
    print_line("checkpoints in memory", format_bytes(memory.in_memory), "checkpoint.memory");
  if (memory.cuda > 0) print_line("CUDA itself", format_bytes(memory.cuda), "as on an H200");
  print_line("program", format_bytes(memory.program), "with its libraries");
  print_line("threads", format_bytes(memory.threads), "their stacks and heaps");
  const double available = available_memory(), here = host_memory(plan, ranks);
  const auto verdict = available > 0 ? fmt::format("of {} available{}", format_bytes(available),
                                                   here > available ? ": it does not fit" : "")
                                     : "";
  const bool gpu = memory.on_gpu > 0;
  print_line("total", format_bytes(memory.total()), ranks.local_size == 1 && !gpu ? verdict : "");
  if (gpu) {
    print_line("on the GPU", format_bytes(memory.on_gpu), "as nvidia-smi counts");
    print_line("on the host", format_bytes(memory.total() - memory.on_gpu),
               ranks.local_size == 1 ? verdict : "");
  }
  if (plan.mesh.pipeline > 1) print_stages(plan, ranks);
  if (ranks.local_size > 1) {
    const int together = std::min(ranks.local_size, ranks.world_size);
    print_line(fmt::format("{} ranks on one host", together), format_bytes(here), verdict);
    const double apart = host_memory(plan, {ranks.world_size, ranks.local_size, false});
    print_line("as processes of MPI", format_bytes(apart), "including the memory of MPI itself");
  }
  double bytes = 0;
  for (const auto& [dir, weight] : data.sources()) bytes += mapped_bytes(dir);
  if (bytes > 0) {
    print_line("token files", format_bytes(bytes),
               "mapped files, not counted: the system drops them when memory is short");
  }
}

}  // namespace shoal::cli
