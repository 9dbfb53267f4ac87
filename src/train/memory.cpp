#include "train/memory.h"

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/text.h"
#include "parallel/data_engine.h"

namespace shoal {
namespace {

// Measured: the resident size of a run of the smallest model, whose own buffers are negligible.
constexpr double kProgramBytes = 48 << 20;

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
  const auto engine = replicated_memory(model, compute_dtype(config));
  MemoryEstimate memory;
  memory.weights = static_cast<double>(engine.weights);
  memory.compute_copy = static_cast<double>(engine.compute_copy);
  memory.gradients = static_cast<double>(engine.gradients);
  memory.optimizer = static_cast<double>(engine.optimizer);
  memory.activations = static_cast<double>(Gpt::activation_bytes(model, gpt_options(config)));
  if (config.checkpoint.interval > 0 || config.checkpoint.best) {
    memory.snapshot = memory.weights + memory.optimizer;
  }
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
      "activations of a "
      "micro-batch of {} x {} tokens, {} for checkpoints; lower train.micro_batch, set "
      "train.recompute=block, or choose "
      "a smaller model (see shoal size)",
      format_bytes(need.total()), format_bytes(have),
      format_bytes(need.weights + need.compute_copy + need.gradients + need.optimizer),
      format_bytes(need.activations), config.train.micro_batch, config.model.block_size,
      format_bytes(need.snapshot));
}

}  // namespace shoal
