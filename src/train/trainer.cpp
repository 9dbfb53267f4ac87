#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>

#include "checkpoint/run_lock.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "data/batch_loader.h"
#include "train/console.h"
#include "train/evaluate.h"
#include "train/interrupt.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/model_io.h"
#include "train/setup.h"
#include "train/spike.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

// A directory for a new run must not hold an earlier one.
void refuse_old_run(const fs::path& run) {
  if (!fs::exists(run / "metrics.jsonl") && list_checkpoints(run / kCheckpointsName).empty()) return;
  fail_user(
      "{} already holds a run; go on with it by init.from=resume, name another by run.name=NAME, or remove "
      "the "
      "folder",
      run.string());
}

void write_config(const Config& config) {
  const auto path = config.run.path() / "config.toml";
  std::ofstream file(path);
  file << to_toml(config, true);
  if (!file.flush()) fail_user("cannot write {}", path.string());
}

// Before anything is written or allocated.
RunLock take_run_directory(const Config& config, const GptConfig& model) {
  check_memory(config, model);
  return RunLock(config.run.path());
}

}  // namespace

struct Trainer::Impl {
  // What one step found out.
  struct StepOutcome {
    double loss = 0;
    double grad_norm = 0;
  };

  // The data decide parts of the config, so they are opened first.
  Config config;
  Dataset data;
  GptConfig gpt;
  RunLock lock;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> group = make_self_communicator();
  std::unique_ptr<DataEngine> engine;
  std::unique_ptr<Gpt> model;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<CheckpointStore> store;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  LrSchedule schedule;
  TrainState state;
  SpikeDetector spikes;
  std::optional<Console> console;
  Arena batch_arena;
  Tensor tokens, targets, losses;  // losses f64 [micro-batches]
  std::string tokenizer;
  double token_flops = flops_per_token(gpt);
  double peak_flops = 0;
  // Since the last evaluation.
  double train_seconds = 0;
  std::int64_t train_steps = 0;
  std::int64_t last_saved = -1;
  TrainResult result;

  explicit Impl(const Config& given);

  int micro_batches() const { return config.train.global_batch / config.train.micro_batch; }
  std::int64_t step_tokens() const {
    return static_cast<std::int64_t>(config.train.global_batch) * config.model.block_size;
  }
  std::int64_t last_step() const { return config.train.steps; }
  bool due(std::int64_t interval) const {
    return interval > 0 && (state.step % interval == 0 || state.step == last_step());
  }

  void start();
  void resume(const fs::path& from);
  StepOutcome step(BatchLoader& loader);
  StepOutcome give_up(StepOutcome outcome, const std::vector<double>& parts, const std::string& why);
  bool evaluate();
  void save(bool best, bool wait);
  void report_failed_save();
  template <typename Record>
  void record(const Record& measured);
  void train(BatchLoader& loader);
};

Trainer::Impl::Impl(const Config& given)
    : config(given),
      data(open_dataset(config)),
      gpt(to_gpt_config(config.model)),
      lock(take_run_directory(config, gpt)),
      backend(make_backend(config.train.backend, config.train.threads)),
      schedule(lr_schedule(config)),
      spikes(config.train.spike_zscore, config.train.spike_window),
      batch_arena(*backend, static_cast<std::size_t>(config.train.micro_batch) *
                                    static_cast<std::size_t>(gpt.block_size) * 8 +
                                static_cast<std::size_t>(micro_batches()) * 8 + 256) {
  if (data.has_tokenizer()) tokenizer = data.meta()->tokenizer;
  const Shape shape{config.train.micro_batch, gpt.block_size};
  tokens = batch_arena.take(DType::i32, shape);
  targets = batch_arena.take(DType::i32, shape);
  losses = batch_arena.take(DType::f64, {micro_batches()});
  start();
}

void Trainer::Impl::start() {
  const auto run = config.run.path();
  const bool resuming = config.init.from == "resume";
  if (!resuming) refuse_old_run(run);
  std::optional<fs::path> from;
  if (resuming) {
    from = latest_in(run / kCheckpointsName);
    if (!from) {
      fail_user("init.from=resume: {} holds no checkpoint; {} init.from=scratch", run.string(),
                fs::exists(run / "metrics.jsonl") ? "remove the folder and start again with"
                                                  : "start the run with");
    }
    check_resume(config_of(CheckpointReader(*from, Verify::sizes)), config, from->string());
  }
  log::attach_file(run / "train.log");
  write_config(config);
  log_summary(config, gpt, data);

  peak_flops = backend->measure_peak_flops(compute_dtype(config));
  engine = make_data_engine(*backend, *group, gpt,
                                  {.compute = compute_dtype(config),
                                   .adamw = {.beta1 = config.optim.betas[0],
                                             .beta2 = config.optim.betas[1],
                                             .eps = config.optim.eps,
                                             .weight_decay = config.optim.weight_decay},
                                   .grad_clip = config.train.grad_clip,
                                   .micro_batches = micro_batches()});
  model = std::make_unique<Gpt>(*backend, *engine, gpt, gpt_options(config));
  evaluator = std::make_unique<Evaluator>(*backend, *model, static_cast<std::uint64_t>(config.run.seed));
  store = std::make_unique<CheckpointStore>(run, StoreOptions{.keep = config.checkpoint.keep});

  constexpr std::string_view kCheckpoint = "checkpoint:";
  if (resuming) {
    resume(*from);
  } else if (config.init.from.starts_with(kCheckpoint)) {
    CheckpointReader checkpoint(config.init.from.substr(kCheckpoint.size()));
    load_state(*engine, checkpoint, false);
    log::info("parameters from {}, step {}", checkpoint.directory().string(), checkpoint.info().step);
  } else {
    engine->initialize(static_cast<std::uint64_t>(config.run.seed));
  }
  sinks = open_metrics(config.log, run, resuming ? std::optional(state.step) : std::nullopt);
  console.emplace(last_step(), data.entropy_per_token());
}

void Trainer::Impl::resume(const fs::path& from) {
  CheckpointReader checkpoint(from);
  load_state(*engine, checkpoint, true);
  state = train_state_of(checkpoint);
  spikes = SpikeDetector(config.train.spike_zscore, config.train.spike_window, state.loss_window);
  last_saved = state.step;
  log::info("resumed from {}", checkpoint.directory().string());
}

Trainer::Impl::StepOutcome Trainer::Impl::step(BatchLoader& loader) {
  const int count = micro_batches();
  const float scale = 1.0f / static_cast<float>(step_tokens());
  engine->begin_step(state.step);
  backend->zero(losses);
  for (int i = 0; i < count; ++i) {
    const auto& batch = loader.next();
    backend->copy_from_host(tokens, batch.tokens.data());
    backend->copy_from_host(targets, batch.targets.data());
    model->train({.tokens = tokens,
                  .targets = targets,
                  .address = {.seed = static_cast<std::uint64_t>(config.run.seed),
                              .step = state.step,
                              .first_sample = batch.first_sample}},
                 {losses.as<double>() + i, DType::f64, {1}}, scale);
  }
  StepOutcome outcome;
  outcome.grad_norm = engine->gradient_norm();
  std::vector<double> parts(static_cast<std::size_t>(count));
  backend->copy_to_host(parts.data(), losses);
  outcome.loss = std::accumulate(parts.begin(), parts.end(), 0.0) / static_cast<double>(step_tokens());
  if (!std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm)) {
    return give_up(outcome, parts,
                   std::isfinite(outcome.loss) ? "the gradient is not finite" : "the loss is not finite");
  }
  if (spikes.is_spike(outcome.loss)) {
    return give_up(outcome, parts,
                   fmt::format("the loss, {:.4f}, is {:.1f} standard deviations above the last {} steps",
                               outcome.loss, spikes.zscore(outcome.loss), config.train.spike_window));
  }
  spikes.add(outcome.loss);
  engine->update(schedule.at(state.step), state.step + 1 - state.skipped_steps);
  return outcome;
}

Trainer::Impl::StepOutcome Trainer::Impl::give_up(StepOutcome outcome, const std::vector<double>& parts,
                                                  const std::string& why) {
  // The micro-batch at fault: the first whose loss is not finite, or else the one with the highest.
  auto worst = std::find_if(parts.begin(), parts.end(), [](double x) { return !std::isfinite(x); });
  if (worst == parts.end()) worst = std::max_element(parts.begin(), parts.end());
  const auto index = worst - parts.begin();
  const auto tensor = engine->first_bad_tensor();
  const double loss = *worst / (static_cast<double>(config.train.micro_batch) * gpt.block_size);
  const auto message = fmt::format(
      "step {}: {}; micro-batch {} of {} (samples {} to {}, loss {:.4f}){}", state.step + 1, why, index + 1,
      parts.size(), index * config.train.micro_batch, (index + 1) * config.train.micro_batch - 1,
      std::isnan(loss) ? std::abs(loss) : loss,  // not "-nan"
      tensor.empty() ? "" : "; first tensor that is not finite: " + tensor);
  console->clear();
  const bool bad_parameters = !tensor.empty() && !tensor.starts_with("the gradient of");
  if (config.train.on_bad_step == "stop" || bad_parameters) {
    store->wait();
    const auto saved = store->latest();
    fail("{}. {}, with a lower optim.lr{}", message,
         saved ? fmt::format("{} is untouched; resume from it", saved->string())
               : "Nothing was saved yet; start the run again",
         bad_parameters ? "" : " or train.on_bad_step=skip");
  }
  log::warn("{}; skipped", message);
  ++state.skipped_steps;
  return outcome;
}

bool Trainer::Impl::evaluate() {
  console->clear();
  const auto on = [&](const char* name, const TokenFile& split, std::int64_t limit) {
    Progress progress(fmt::format("evaluating {}", name), 0, "batches");
    const auto show = show_on(progress);
    const std::int64_t batches = config.eval.batches;
    const auto found =
        batches > 0 ? evaluator->random(split, batches, show) : evaluator->whole(split, limit, show);
    progress.clear();
    return found;
  };
  const auto val = on("val", data.val(), 0);
  // The train split may be huge: as many batches of it as the val split has.
  const std::int64_t windows = (data.val().size() - 1 + gpt.block_size - 1) / gpt.block_size;
  const auto train =
      on("train", data.train(), (windows + config.train.micro_batch - 1) / config.train.micro_batch);
  record(EvalRecord{.step = state.step,
                    .train_loss = train.loss(),
                    .val_loss = val.loss(),
                    .val_accuracy = val.accuracy(),
                    .entropy_floor = data.entropy_per_token()});
  log::info(
      "Step {}, Val loss: {:.6f}, Train loss: {:.6f}, Train time: {:.3f} s ({:.3f} ms/step), Total train "
      "time: {:.3f} s",
      state.step, val.loss(), train.loss(), train_seconds,
      train_seconds * 1e3 / static_cast<double>(std::max<std::int64_t>(train_steps, 1)), state.train_seconds);
  train_seconds = 0;
  train_steps = 0;
  result.val_loss = val.loss();
  if (!(val.loss() < state.best_val_loss)) return false;
  state.best_val_loss = val.loss();
  return true;
}

void Trainer::Impl::save(bool best, bool wait) {
  store->wait();
  report_failed_save();
  if (last_saved == state.step && !best) return;
  state.loss_window = spikes.losses();
  const auto slices = state_slices(*engine);
  store->save_async(make_checkpoint_info(config, gpt, state, tokenizer), slices, best);
  last_saved = state.step;
  if (!wait) return;
  store->wait();
  if (const auto error = store->take_error()) {
    fail_user("the state after step {} could not be saved: {}", state.step, *error);
  }
}

void Trainer::Impl::report_failed_save() {
  if (const auto error = store->take_error()) {
    last_saved = -1;
    console->clear();
    log::warn("a checkpoint could not be saved: {}; training goes on, and earlier checkpoints are untouched",
              *error);
  }
}

// A disk that is full must not end a run whose next checkpoint may find room again.
template <typename Record>
void Trainer::Impl::record(const Record& measured) {
  std::erase_if(sinks, [&](auto& sink) {
    try {
      sink->write(measured);
      return false;
    } catch (const UserError& error) {
      console->clear();
      log::warn("{}; training goes on without writing there", error.what());
      return true;
    }
  });
}

void Trainer::Impl::train(BatchLoader& loader) {
  double group_seconds = 0;
  std::int64_t group_steps = 0;
  while (state.step < last_step() && !InterruptGuard::requested()) {
    const double lr = schedule.at(state.step);
    Stopwatch watch;
    const auto outcome = step(loader);
    const double seconds = watch.seconds();
    state.train_seconds += seconds;
    train_seconds += seconds;
    ++train_steps;
    group_seconds += seconds;
    ++group_steps;
    ++state.step;
    state.tokens += step_tokens();
    result.train_loss = outcome.loss;

    const double per_step = group_seconds / static_cast<double>(group_steps);
    const double left = per_step * static_cast<double>(last_step() - state.step);
    if (due(config.log.interval)) {
      const double rate = static_cast<double>(step_tokens()) / per_step;
      const StepRecord measured{.step = state.step,
                                .loss = outcome.loss,
                                .lr = lr,
                                .grad_norm = outcome.grad_norm,
                                .tokens = state.tokens,
                                .tokens_per_s = rate,
                                .ms_per_step = per_step * 1e3,
                                .peak_share = peak_flops > 0 ? rate * token_flops / peak_flops : 0};
      console->step(measured, left);
      record(measured);
      group_seconds = 0;
      group_steps = 0;
    }
    console->bar(state.step, outcome.loss, left);
    report_failed_save();
    const bool improved = due(config.eval.interval) && evaluate();
    if (improved && config.checkpoint.best) {
      save(true, false);
    } else if (due(config.checkpoint.interval)) {
      save(false, false);
    }
  }
}

Trainer::Trainer(const Config& config) : impl_(std::make_unique<Impl>(config)) {}
Trainer::~Trainer() { log::detach_file(); }

TrainResult Trainer::run() {
  auto& run = *impl_;
  auto& result = run.result;
  result.val_loss = std::numeric_limits<double>::infinity();
  InterruptGuard guard;
  if (run.state.step >= run.last_step()) {
    log::info("nothing to do: the run has its {} steps; give a larger train.steps to go on", run.last_step());
    return {.step = run.state.step, .val_loss = run.state.best_val_loss};
  }
  const BatchSampler sampler(run.data.train(), run.gpt.block_size, parse_sampling(run.config.data.sampling),
                             static_cast<std::uint64_t>(run.config.run.seed));
  BatchLoader loader(sampler, {.first_step = run.state.step,
                               .last_step = run.last_step(),
                               .first_sample = 0,
                               .samples = run.config.train.global_batch,
                               .global_batch = run.config.train.global_batch,
                               .micro_batch = run.config.train.micro_batch});
  const bool fresh = run.config.init.from != "resume";
  if (fresh && run.config.eval.at_start && run.config.eval.interval > 0) run.evaluate();
  const double before = run.state.train_seconds;
  run.train(loader);
  run.console->clear();
  if (const double waited = loader.waited_seconds(); waited > 0.01 * (run.state.train_seconds - before)) {
    log::warn("steps waited {} for data: the disk of {} may be too slow", format_duration(waited),
              run.config.data.dir);
  }
  run.save(false, true);

  result.step = run.state.step;
  const auto where = run.config.run.path().string();
  if (const char* signal = InterruptGuard::requested(); signal && run.state.step < run.last_step()) {
    result.interrupted = true;
    log::info("stopped by {} after step {}; everything is saved, go on with init.from=resume", signal,
              run.state.step);
  } else {
    log::info("done: {} steps in {}, best val loss {:.4f}; the run is in {}", run.state.step,
              format_duration(run.state.train_seconds), run.state.best_val_loss, where);
  }
  return result;
}

}  // namespace shoal
