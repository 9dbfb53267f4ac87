#include "config/follow.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/log.h"

namespace shoal {
namespace {

bool given(const Config& config, const char* key) { return config.fixed.contains(key); }

void set_micro_batch(Config& config, int size, const std::string& why) {
  config.followed.push_back(
      fmt::format("train.micro_batch = {}: the config's {} {}", size, config.train.micro_batch, why));
  config.train.micro_batch = size;
}

}  // namespace

int largest_micro_batch(int sequences, int ranks, int limit) {
  int size = std::min(limit, sequences / ranks);
  while (sequences % size != 0) --size;
  return size;
}

void follow_arguments(Config& config) {
  auto& train = config.train;
  if (train.steps == 0 || train.epochs == 0) return;
  const bool steps = given(config, "train.steps"), epochs = given(config, "train.epochs");
  if (steps == epochs) return;
  const std::int64_t unused = steps ? train.epochs : train.steps;
  config.followed.push_back(fmt::format("train.{} = {} sets the length, not the config's train.{} = {}",
                                        steps ? "steps" : "epochs", steps ? train.steps : train.epochs,
                                        steps ? "epochs" : "steps", unused));
  (steps ? train.epochs : train.steps) = 0;
}

void follow_batch(Config& config) {
  const auto& train = config.train;
  if (train.micro_batch == 0 || train.global_batch % train.micro_batch == 0) return;
  if (!given(config, "train.global_batch") || given(config, "train.micro_batch")) return;
  set_micro_batch(config, largest_micro_batch(train.global_batch, 1, train.micro_batch),
                  fmt::format("does not divide train.global_batch = {}", train.global_batch));
}

void follow_steps(Config& config, bool from_epochs) {
  const auto steps = config.train.steps;
  if (steps == 0 || !(from_epochs || given(config, "train.steps"))) return;
  auto& schedule = config.lr_schedule;
  const auto is_given = [&](const char* in_steps, const char* in_tokens) {
    return given(config, in_steps) || given(config, in_tokens);
  };
  if (schedule.warmup_steps > steps && !is_given("lr_schedule.warmup_steps", "lr_schedule.warmup_tokens")) {
    const auto warmup = std::max<std::int64_t>(1, steps / 10);
    config.followed.push_back(
        fmt::format("lr_schedule.warmup_steps = {}, a tenth of the run: the config's {} are more than its {} "
                    "step{}",
                    warmup, schedule.warmup_steps, steps, steps == 1 ? "" : "s"));
    schedule.warmup_steps = warmup;
  }
  const auto left = steps - schedule.warmup_steps;
  if (schedule.name == LrShape::wsd && schedule.decay_steps > left && left >= 0 &&
      !is_given("lr_schedule.decay_steps", "lr_schedule.decay_tokens")) {
    const auto decay = std::min(steps / 5, left);
    config.followed.push_back(fmt::format(
        "lr_schedule.decay_steps = {}: the config's {} do not fit into the run's {} steps with {} of warm-up",
        decay, schedule.decay_steps, steps, schedule.warmup_steps));
    schedule.decay_steps = decay;
  }
}

void follow_ranks(Config& config, int workers, int data_ranks) {
  const auto& train = config.train;
  if (train.micro_batch == 0 || given(config, "train.micro_batch")) return;
  if (config.run.deterministic == Determinism::layout) return;
  const int sequences = train.global_batch / workers;
  if (train.global_batch % workers != 0 || sequences < data_ranks) return;  // no micro-batch is possible
  const int size = largest_micro_batch(sequences, data_ranks, train.micro_batch);
  if (size == train.micro_batch) return;
  set_micro_batch(config, size,
                  workers > 1
                      ? fmt::format("does not divide {} sequences evenly among {} workers of {} data rank{}",
                                    train.global_batch, workers, data_ranks, data_ranks == 1 ? "" : "s")
                      : fmt::format("makes {} micro-batches of {} sequences, too few for {} data ranks",
                                    train.global_batch / train.micro_batch, train.global_batch, data_ranks));
}

void log_followed(const Config& config) {
  for (const auto& change : config.followed) log::info("{}", change);
}

}  // namespace shoal
