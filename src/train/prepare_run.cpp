#include "train/prepare_run.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "checkpoint/memory_folder.h"
#include "checkpoint/store.h"
#include "config/follow.h"
#include "config/layout.h"
#include "config/memory.h"
#include "config/pretrained.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "train/facts.h"
#include "train/model_io.h"
#include "train/remedies.h"
#include "train/restore_from_memory.h"
#include "train/start.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

std::int64_t steps_of(const Config& config, const Mixture& data) {
  if (config.train.steps > 0) return config.train.steps;
  const std::int64_t samples = config.train.epochs * windows_of_epoch(config, data);
  return (samples + config.train.global_batch - 1) / config.train.global_batch;
}

// Lengths in epochs and tokens become lengths in steps. Returns the keys that these come from, for errors.
Origins resolve_lengths(Config& config, const Mixture& data) {
  Origins origins;
  const std::int64_t of_step = std::int64_t{config.train.global_batch} * config.model.block_size;
  const auto resolve = [&](const std::string& name, std::int64_t& tokens, std::int64_t& steps) {
    if (tokens == 0) return;
    origins["lr_schedule." + name + "_steps"] = fmt::format("lr_schedule.{}_tokens = {}", name, tokens);
    steps = (tokens + of_step - 1) / of_step;
    tokens = 0;
  };
  auto& schedule = config.lr_schedule;
  resolve("warmup", schedule.warmup_tokens, schedule.warmup_steps);
  resolve("decay", schedule.decay_tokens, schedule.decay_steps);
  if (config.train.epochs > 0) origins["train.steps"] = fmt::format("train.epochs = {}", config.train.epochs);
  config.train.steps = steps_of(config, data);
  config.train.epochs = 0;
  return origins;
}

Mixture open_alone(Config& config) {
  Mixture data = with_remedy([&] {
    return Mixture(config.data.sources(),
                   {.truncate = config.data.truncate, .vocab_size = config.model.vocab_size});
  });
  if (config.model.vocab_size == 0) config.model.vocab_size = data.vocab_size();
  if (config.model.vocab_size < data.vocab_size()) {
    fail_user("model.vocab_size = {} is smaller than the vocabulary of {}, {}; {}", config.model.vocab_size,
              data.description(), data.vocab_size(),
              weights_of_start(config.init.from) ? "prepare the data with the tokenizer of the weights"
                                                 : "leave it out to take the data's");
  }
  for (const auto* name : {"train", "val"}) {
    for (const auto& [split, weight] : data.split(name)) {
      if (split->size() >= config.model.block_size + 1) continue;
      fail_user(
          "{} has {} tokens, but model.block_size = {} needs at least {}; lower the block size or prepare "
          "more data",
          split->path().string(), with_commas(split->size()), config.model.block_size,
          with_commas(config.model.block_size + 1));
    }
  }
  const bool from_epochs = config.train.steps == 0;
  const auto origins = resolve_lengths(config, data);
  follow_steps(config, from_epochs);
  auto& schedule = config.lr_schedule;
  if (schedule.decay_steps == 0 && schedule.name != LrShape::constant) {
    const auto steps = config.train.steps, warmup = schedule.warmup_steps;
    schedule.decay_steps =
        schedule.name == LrShape::wsd ? std::min(steps / 5, steps - warmup) : std::max(steps, warmup + 1);
  }
  validate(config, origins);  // the steps of epochs and tokens are known only now
  return data;
}

std::string new_session() {
  return fmt::format("{:x}-{:x}", std::chrono::system_clock::now().time_since_epoch().count(), ::getpid());
}

// On hosts that share no files, a rank would train on without its part of any checkpoint.
void require_lock_of(const std::string& holder, const fs::path& run, bool one_host) {
  const double delay = one_host ? 0 : 10;  // seconds for which network file systems may not see what is new
  errno = 0;
  for (const Stopwatch watch; lock_holder(run) != holder;) {
    if (watch.seconds() > delay) {
      fail_user(
          "it does not see the run's folder {} as rank 0 made it{}; run.dir must name a folder that all "
          "hosts share",
          run.string(), errno == 0 ? "" : fmt::format(" ({})", std::strerror(errno)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

std::int64_t windows_of_epoch(const Config& config, const Mixture& data) {
  return count_windows(data.first().train().size(), config.model.block_size, config.data.stride);
}

Config agree_on_config(const Config& config, World& world) {
  require_agreement(world.ranks, facts_of(config));
  Config settled = config;
  int here = world.local_size;  // the fewest on any host, which every host has
  world.ranks.all_reduce({&here, DType::i32, {1}}, ReduceOp::min).wait();
  resolve_layout(settled, world.ranks.size(), here);
  return settled;
}

Mixture open_data(Config& config, World& world) {
  std::optional<Mixture> data;
  all_or_none(world.ranks, [&] { data.emplace(open_alone(config)); });
  some_for_all_at_length(world.ranks, world.local_rank == 0, [&] { with_remedy([&] { data->verify(); }); });
  require_agreement(world.ranks, facts_of(*data));
  return std::move(*data);
}

RunPlan agree_on_plan(const Config& config, World& world) {
  RunPlan plan;
  all_or_none(world.ranks, [&] { plan = make_plan(config); });
  return plan;
}

RunDirectory take_run_directory(Config& config, const RunPlan& plan, World& world) {
  const auto run = config.run.path();
  some_for_all(world.ranks, world.local_rank == 0, [&] {
    const MemoryFolder left_by_killed(config.checkpoint.memory_dir, run, "");
    check_memory(plan, RankCounts::of(world), static_cast<double>(left_by_killed.bytes()));
  });
  const bool first = world.ranks.rank() == 0;
  RunDirectory directory;
  auto& lock = directory.lock;
  some_for_all(world.ranks, first, [&] {
    with_remedy([&] { lock.emplace(run); });
    remove_leftovers(run / kCheckpointsName);  // or brings back a checkpoint that was being replaced
  });
  const auto holder = broadcast_text(world.ranks, first ? lock_holder(run) : "");
  all_or_none(world.ranks, [&] { require_lock_of(holder, run, world.local_size == world.ranks.size()); });
  const bool automatic = start_without_checkpoint(config.init.from).has_value();
  if (config.init.resumes() || automatic) {
    restore_from_memory(world, config, broadcast_text(world.ranks, lock ? lock->last_session() : ""));
  }
  directory.session = broadcast_text(world.ranks, new_session());
  some_for_all(world.ranks, first, [&] {
    config.init.from = settle_start(config);
    // First: a later start that found the last session's state in memory would need its measurements.
    lock->begin_session(directory.session);
    if (automatic && !config.init.resumes()) put_measurements_aside(run);
  });
  config.init.from = broadcast_text(world.ranks, config.init.from);
  return directory;
}

void write_config(const Config& config, const std::string& name) {
  const auto path = config.run.path() / name;
  const auto text = to_toml(config, true);
  try {
    replace_text(path, text);
  } catch (const UserError&) {  // a full disk, on which a run may go on
    if (!overwrite_text(path, text)) throw;
  }
}

LrSchedule lr_schedule(const Config& config) {
  return {.shape = config.lr_schedule.name,
          .peak = config.optim.lr,
          .minimum = config.lr_schedule.min_lr,
          .warmup_steps = config.lr_schedule.warmup_steps,
          .warmup_start = config.lr_schedule.warmup_start,
          .decay_steps = config.lr_schedule.decay_steps,
          .total_steps = config.train.steps};
}

}  // namespace shoal
