#include "train/setup.h"

#include <algorithm>

#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "model/unit.h"
#include "train/memory.h"

namespace shoal {
namespace {

std::int64_t steps_of(const Config& config, const Dataset& data) {
  if (config.train.steps > 0) return config.train.steps;
  const BatchSampler sampler(data.train(), config.model.block_size, Sampling::epochs, 0);
  const std::int64_t samples = config.train.epochs * sampler.windows();
  return (samples + config.train.global_batch - 1) / config.train.global_batch;
}

}  // namespace

Dataset open_dataset(Config& config) {
  Dataset data(config.data.dir, {.truncate = config.data.truncate, .vocab_size = config.model.vocab_size});
  if (config.model.vocab_size == 0) config.model.vocab_size = data.vocab_size();
  if (config.model.vocab_size < data.vocab_size()) {
    fail_user(
        "model.vocab_size = {} is smaller than the vocabulary of {}, {}; leave it out to take the data's",
        config.model.vocab_size, config.data.dir, data.vocab_size());
  }
  for (const auto* split : {&data.train(), &data.val()}) {
    if (split->size() >= config.model.block_size + 1) continue;
    fail_user(
        "{} has {} tokens, too few for model.block_size = {} (it takes one more); lower the block size or "
        "prepare "
        "more data",
        split->path().string(), split->size(), config.model.block_size);
  }
  data.verify();
  config.train.steps = steps_of(config, data);
  config.train.epochs = 0;
  auto& schedule = config.lr_schedule;
  if (schedule.decay_steps == 0 && schedule.name != "constant") {
    const auto steps = config.train.steps, warmup = schedule.warmup_steps;
    schedule.decay_steps =
        schedule.name == "wsd" ? std::min(steps / 5, steps - warmup) : std::max(steps, warmup + 1);
  }
  validate(config);  // of epochs, the steps are known only now
  return data;
}

LrSchedule lr_schedule(const Config& config) {
  const auto& name = config.lr_schedule.name;
  return {.shape = name == "linear"     ? LrShape::linear
                   : name == "constant" ? LrShape::constant
                   : name == "wsd"      ? LrShape::wsd
                                        : LrShape::cosine,
          .peak = config.optim.lr,
          .minimum = config.lr_schedule.min_lr,
          .warmup_steps = config.lr_schedule.warmup_steps,
          .decay_steps = config.lr_schedule.decay_steps,
          .total_steps = config.train.steps};
}

void log_summary(const Config& config, const GptConfig& model, const Dataset& data) {
  const auto memory = estimate_memory(config, model);
  log::info("model: {} layers, {} heads, width {}, block {}, vocabulary {}: {} parameters", model.n_layer,
            model.n_head, model.n_embd, model.block_size, model.vocab_size,
            format_count(static_cast<double>(parameter_count(gpt_units(model)))));
  log::info("data: {} ({} train and {} val tokens)", config.data.dir, with_commas(data.train().size()),
            with_commas(data.val().size()));
  const std::int64_t tokens = static_cast<std::int64_t>(config.train.global_batch) * model.block_size;
  log::info("run: {} steps of {} sequences = {} tokens in micro-batches of {}, {}, {} of memory",
            with_commas(config.train.steps), config.train.global_batch, with_commas(tokens),
            config.train.micro_batch, config.train.dtype, format_bytes(memory.total()));
  if (const auto floor = data.entropy_per_token()) {
    log::info("the data's own entropy is {:.4f} nats per token: no model's expected loss is below it",
              *floor);
  }
}

void check_resume(const Config& saved, const Config& now, const std::string& checkpoint) {
  std::string fixed;
  for (const auto& [key, before, after] : diff(saved, now)) {
    if (key == "run.seed" || key == "data.sampling" || key == "data.truncate" ||
        (key.starts_with("model.") && key != "model.preset")) {
      fixed += fmt::format("\n  {} = {} (the checkpoint has {})", key, after, before);
    } else if (key != "init.from" && key != "model.preset") {
      log::info("resuming with {} = {} instead of {}", key, after, before);
    }
  }
  if (fixed.empty()) return;
  fail_user(
      "cannot resume from {}: it belongs to another run:{}\nset these keys back, or start a new run under "
      "another "
      "run.name",
      checkpoint, fixed);
}

}  // namespace shoal
