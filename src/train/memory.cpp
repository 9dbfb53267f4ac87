#include "train/memory.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include "checkpoint/file_io.h"
#include "core/error.h"
#include "core/text.h"
#include "data/batch_loader.h"
#include "model/arena.h"
#include "parallel/data_engine.h"

namespace shoal {
namespace {

// Measured on x86-64 Debian 12: the peak resident size of a run of the smallest model, whose own buffers are
// negligible, with oneDNN's generated code and scratch of larger ones.
constexpr double kProgramBytes = 24 << 20;

// What Gpt takes, by part.
void add_activations(MemoryEstimate& memory, const GptConfig& model, const GptOptions& options) {
  Arena work, head, stream;
  Workspace::take(work, model, options.batch, options.compute);
  Head::Activations::take(head, model, options.batch, options.compute);
  stream.take(DType::f32, {options.batch.batch, options.batch.positions, model.n_embd});
  memory.workspace = static_cast<double>(work.used());
  memory.head = static_cast<double>(head.used());
  memory.streams = static_cast<double>(stream.used()) * (model.n_layer + 1);
  memory.blocks = static_cast<double>(Gpt::activation_bytes(model, options)) - memory.workspace -
                  memory.head - memory.streams;
}

// The largest of what the cpu backend's kernels hold, float32: eight matrices of a head per thread in
// attention's backward pass, or partial sums of the widest bias over blocks of rows.
double kernel_scratch(const Config& config, const GptConfig& model, double rows) {
  constexpr double kRowBlock = 64;
  if (config.train.backend != "cpu") return 0;
  const int threads =
      config.train.threads > 0 ? config.train.threads : static_cast<int>(std::thread::hardware_concurrency());
  const double attention = 8.0 * threads * model.block_size * model.head_size();
  return 4 * std::max(attention, rows / kRowBlock * 4 * model.n_embd);
}

double read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : 0;
}

}  // namespace

DType compute_dtype(const Config& config) {
  return config.train.dtype == "bfloat16" ? DType::bf16 : DType::f32;
}

GptOptions gpt_options(const Config& config) {
  return {.batch = {config.train.micro_batch, config.model.block_size},
          .compute = compute_dtype(config),
          .recompute = config.train.recompute == "block" ? Recompute::block : Recompute::none};
}

MemoryEstimate estimate_memory(const Config& config, const GptConfig& model) {
  const auto engine = engine_memory(model, {.compute = compute_dtype(config), .adamw = {}});
  const auto options = gpt_options(config);
  const auto rows = static_cast<double>(options.batch.rows());
  MemoryEstimate memory;
  memory.weights = static_cast<double>(engine.weights);
  memory.compute_copy = static_cast<double>(engine.compute_copy);
  memory.gradients = static_cast<double>(engine.gradients);
  memory.optimizer = static_cast<double>(engine.optimizer);
  add_activations(memory, model, options);
  // int32 tokens and targets: the loader's ring, one more set for training and one for evaluation on the
  // backend, and a host copy with predictions for the latter.
  memory.batches = rows * 4 * (2 * (static_cast<double>(BatchLoader::kDepth) + 1) + 2 + 2 + 3);
  memory.scratch = kernel_scratch(config, model, rows);
  // Also a run without checkpoints on the way saves its end. The writer's buffer is there twice while it
  // grows.
  const double state = memory.weights + memory.optimizer;
  memory.checkpoint = state + 2 * std::min<double>(kChecksumBlock, state);
  memory.program = kProgramBytes;
  return memory;
}

double available_memory() {
  double available = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    if (key == "MemAvailable:") {
      file >> available;
      available *= 1024;
      break;
    }
    file.ignore(256, '\n');
  }
  const double limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit > 0) available = std::min(available, limit - read_number("/sys/fs/cgroup/memory.current"));
  return std::max(available, 0.0);
}

void check_memory(const Config& config, const GptConfig& model) {
  const auto need = estimate_memory(config, model);
  const double have = available_memory();
  if (have == 0 || need.total() <= have) return;
  fail_user(
      "this run needs {} of memory and {} are available: {} parameters, gradients and moments, {} "
      "activations of a micro-batch of {} x {} tokens, {} for checkpoints; lower train.micro_batch, set "
      "train.recompute=block, or choose a smaller model (see shoal size)",
      format_bytes(need.total()), format_bytes(have),
      format_bytes(need.weights + need.compute_copy + need.gradients + need.optimizer),
      format_bytes(need.activations()), config.train.micro_batch, config.model.block_size,
      format_bytes(need.checkpoint));
}

}  // namespace shoal
