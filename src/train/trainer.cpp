#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "comm/agreement.h"
#include "config/plan.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/text.h"
#include "core/trace.h"
#include "data/batch_loader.h"
#include "launch/ranks.h"
#include "ops/make_backend.h"
#include "parallel/backend_ranks.h"
#include "report/reporter.h"
#include "report/run_time.h"
#include "report/tracer.h"
#include "train/bad_step.h"
#include "train/disk_space.h"
#include "train/evaluate.h"
#include "train/saver.h"
#include "train/setup.h"
#include "train/spike.h"
#include "train/start.h"
#include "train/step_news.h"
#include "train/training_step.h"
#include "train/worker_state.h"

namespace shoal {

struct Trainer::Impl {
  // What one step found out, the same on every rank of a worker.
  struct StepOutcome {
    double lr = 0;
    double loss = 0;
    double grad_norm = 0;
    bool skipped = false;
  };

  World& world;
  Tracer* tracer;      // or null
  const Config given;  // before its layout was resolved
  std::unique_ptr<Backend> backend;
  // The data decide parts of the config, so they are opened first.
  Config config;
  BackendRanks connected;
  Communicator& ranks;  // for tensors in the backend's memory, too
  Dataset data;
  RunPlan plan;
  const GptConfig& gpt = plan.model;
  Mesh mesh;
  std::optional<RunLock> lock;
  std::unique_ptr<DataEngine> engine;
  std::unique_ptr<Pipeline> model;
  std::optional<TrainingStep> training_step;
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<Saver> saver;
  std::optional<StepNews> news;  // where there are several workers
  Reporter reporter;
  LrSchedule schedule;
  TrainState state;
  SpikeDetector spikes;
  std::string tokenizer;
  nlohmann::json contents;  // of the data
  double token_flops = flops_per_token(gpt);
  double peak_flops = 0;       // of all ranks
  std::int64_t windows = 0;    // of an epoch
  const char* stop = nullptr;  // the signal that some rank got
  // Since the last evaluation.
  double train_seconds = 0;
  std::int64_t train_steps = 0;
  std::int64_t last_saved = -1;
  bool failure_told = false;  // of the last save
  Stopwatch timed;            // since the first step of this process, for the estimate of the run's time
  std::int64_t timed_steps = -1;
  TrainResult result;

  Impl(const Config& config, World& world, Tracer* tracer);

  bool first() const { return ranks.rank() == 0; }
  // Then a copy for saving in the background would need the memory that is not there.
  bool state_on_disk() const { return plan.on_disk(); }
  int workers() const { return mesh.shape().workers; }
  // Micro-batches are dealt to workers in turn, and a worker's to its data ranks.
  int micro_batches() const { return plan.micro_batches(); }
  int first_dealt() const {  // of all micro-batches
    return engine->first_micro_batch() * workers() + mesh.place().worker;
  }
  std::int64_t worker_tokens() const { return step_tokens() / workers(); }
  std::int64_t step_tokens() const {
    return static_cast<std::int64_t>(config.train.global_batch) * config.model.block_size;
  }
  std::int64_t last_step() const { return config.train.steps; }
  bool evaluates() const { return config.eval.interval >= 0; }
  bool evaluation_due() const {
    return evaluates() && (state.step == last_step() || due(config.eval.interval, config.eval.epochs));
  }
  // After every `interval` steps, and after the step that ends every `epochs`-th epoch.
  bool due(std::int64_t interval, std::int64_t epochs) const {
    if (interval == 0 && epochs == 0) return false;
    if (state.step == last_step()) return true;
    if (interval > 0 && state.step % interval == 0) return true;
    const std::int64_t period = epochs * windows, batch = config.train.global_batch;
    return epochs > 0 && state.step * batch / period != (state.step - 1) * batch / period;
  }
  // The number of ranks is no part of the run: another may go on with it.
  Config described() const {
    Config described = config;
    described.init.other_data = false;
    described.parallel.data = given.parallel.data;
    described.gossip.local_size = given.gossip.local_size;
    return described;
  }

  void start();
  void hear(std::span<const double> signals);
  void share_signals();
  void hear_news(bool all);
  StepOutcome step(BatchLoader& loader);
  StepOutcome give_up(StepOutcome outcome, const std::vector<double>& parts, const std::string& why);
  std::string first_bad_tensor();
  Evaluation measure(const std::string& split, std::int64_t sequences, std::int64_t most = 0);
  bool evaluate();
  void evaluate_test();
  void evaluate_at_start();
  void guess_time();
  void estimate_time();
  RunWork work() const {
    return work_left(config, state.step, data.train().size(), data.val().size(), windows);
  }
  double seconds_left(double per_step) const {
    return per_step * static_cast<double>(last_step() - state.step);
  }
  double share_of_peak(double flops);
  void tell(const StepRecord& record) { reporter.step(record, seconds_left(record.ms_per_step / 1e3)); }
  void save(bool best, bool wait);
  void tell_failed_save(const std::string& why);
  void train(BatchLoader& loader);
};

Trainer::Impl::Impl(const Config& its_config, World& its_world, Tracer* its_tracer)
    : world(its_world),
      tracer(its_tracer),
      given(its_config),
      backend(make_backend(given.train.backend, backend_options(given, world))),
      config(agree_on_config(given, world)),
      connected(connect_backends(*backend, world.ranks, config.parallel.gpu_exchange)),
      ranks(*connected.ranks),
      data(open_dataset(config, world)),
      plan(agree_on_plan(config, world)),
      mesh(ranks, plan.mesh),
      lock(take_run_directory(config, plan, world)),
      schedule(lr_schedule(config)),
      spikes(config.train.spike_zscore, config.train.spike_window),
      windows(windows_of_epoch(config, data)) {
  tokenizer = data.tokenizer_text();
  contents = describe_contents(data);
  start();
}

void Trainer::Impl::start() {
  const auto run = config.run.path();
  const bool resuming = config.init.resumes();
  // Where the state is on disk, the memory for a copy is what is not there.
  StoreOptions::Copy copy;
  if (!state_on_disk()) {
    copy = [this](void* to, const void* from, std::size_t bytes) {
      if (!backend->is_remote(from)) return copy_host_memory(to, from, bytes);
      const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
      backend->copy_to_host(to, {const_cast<void*>(from), DType::f32, {elements}});
    };
  }
  saver = std::make_unique<Saver>(ranks, run, config.checkpoint.keep, std::move(copy));
  auto wanted = described();
  wanted.init.other_data = given.init.other_data;
  const auto from = find_start(wanted, data, ranks);
  if (first()) log::attach_file(run / "train.log");
  some_for_all(ranks, first(), [&] { write_config(described()); });
  log_summary(config, plan, data, world);
  if (first()) warn_of_small_disk(config, plan);
  if (!connected.how.empty()) log::info("between GPUs: {}", connected.how);

  if (tracer) tracer->set_place(to_string(mesh.place(), mesh.shape()));
  peak_flops = backend->measure_peak_flops(config.train.dtype);
  ranks.all_reduce({&peak_flops, DType::f64, {1}}).wait();
  engine = make_data_engine(*backend, mesh, gpt, plan.engine_options(mesh.place()));
  model = std::make_unique<Pipeline>(*backend, *engine, mesh, gpt, plan.pipeline_options(mesh.place()));
  // What other ranks send, what is timed and what is decided on the host in between cannot be recorded.
  const bool can_record = ranks.size() == 1 && !(tracer && tracer->traces()) && !spikes.active() &&
                          config.parallel.offload == Offload::none;
  training_step.emplace(*backend, *engine, *model, mesh, workers() > 1 ? mesh.worker() : ranks,
                        TrainingStep::Options{.seed = static_cast<std::uint64_t>(config.run.seed),
                                              .tokens = worker_tokens(),
                                              .with_signals = workers() == 1,
                                              .updates = !spikes.active(),
                                              .record = config.train.graph && can_record});
  if (training_step->records()) log::info("the second step is recorded as a graph, which the others play");
  evaluator =
      std::make_unique<Evaluator>(*backend, *model, mesh, static_cast<std::uint64_t>(config.run.seed));
  if (workers() > 1) news.emplace(ranks, *plan.topology());

  if (from) {
    all_or_none(ranks, [&] {
      try {
        state = read_start(config, *from, *engine, *backend, mesh.shape(), mesh.place());
      } catch (const UserError& error) {
        if (!resuming) throw;
        throw with_older_checkpoint(error, *from);
      }
    });
    engine->state_loaded();
  } else {
    engine->initialize(static_cast<std::uint64_t>(config.run.seed));
  }
  if (resuming) {
    spikes = SpikeDetector(config.train.spike_zscore, config.train.spike_window, state.loss_window);
    last_saved = state.step;
    // What `best` is compared with must be there to go back to.
    if (config.checkpoint.best && !saver->has_best()) {
      state.best_val_loss = std::numeric_limits<double>::infinity();
    }
  }
  if (state.step >= last_step() && !state.evaluation_left) return;  // nothing will be measured
  some_for_all(ranks, first(), [&] {
    reporter =
        Reporter(config, data.entropy_per_token(), resuming ? std::optional(state.step) : std::nullopt);
  });
}

// All stop after the same step when any of them got a signal.
void Trainer::Impl::hear(std::span<const double> signals) {
  if (!stop) stop = InterruptGuard::requested(signals);
}

void Trainer::Impl::share_signals() {
  auto signals = InterruptGuard::counts();
  ranks.all_reduce({signals.data(), DType::f64, {std::ssize(signals)}}).wait();
  hear(signals);
}

// Of steps that other workers may not have made yet when this one did.
void Trainer::Impl::hear_news(bool all) {
  while (const auto heard = news->next(all)) {
    hear(heard->signals);
    result.train_loss = heard->loss;
    if (heard->skipped > 0) {
      reporter.clear();
      log::warn("step {}: skipped by {:.0f} of the workers beside the first", heard->step, heard->skipped);
    }
    if (heard->record) tell(*heard->record);
  }
}

Trainer::Impl::StepOutcome Trainer::Impl::step(BatchLoader& loader) {
  const trace::Span span("step", fmt::format("step {}", state.step + 1));
  const double lr = schedule.at(state.step);
  auto found = training_step->run(state.step, {lr, state.step + 1 - state.skipped_steps}, loader);
  if (!news) hear(found.signals);
  auto& parts = found.losses;
  parts.resize(static_cast<std::size_t>(micro_batches()));
  StepOutcome outcome{.lr = lr, .grad_norm = found.grad_norm};
  outcome.loss = std::accumulate(parts.begin(), parts.end(), 0.0) / static_cast<double>(worker_tokens());
  if (!std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm)) {
    return give_up(outcome, parts,
                   std::isfinite(outcome.loss) ? "the gradient is not finite" : "the loss is not finite");
  }
  if (spikes.is_spike(outcome.loss)) {
    return give_up(outcome, parts,
                   fmt::format("the loss, {:.4f}, is {:.1f} standard deviations above the last {} steps",
                               outcome.loss, spikes.zscore(outcome.loss), config.train.spike_window));
  }
  if (!spikes.active()) return outcome;
  spikes.add(outcome.loss);
  engine->update();
  return outcome;
}

Trainer::Impl::StepOutcome Trainer::Impl::give_up(StepOutcome outcome, const std::vector<double>& parts,
                                                  const std::string& why) {
  const BadStep bad{.step = state.step + 1,
                    .worker = mesh.place().worker,
                    .workers = workers(),
                    .why = why,
                    .losses = parts,
                    .tensor = first_bad_tensor()};
  const auto message = bad.describe(config);
  reporter.clear();
  if (config.train.on_bad_step == OnBadStep::stop || bad.bad_parameters()) {
    if (!news) saver->settle();  // other workers are not here
    const auto latest = saver->latest();
    const auto saved = broadcast_text(mesh.worker(), latest ? latest->string() : "");
    fail("{}. {}, with a lower optim.lr{}", message,
         saved.empty() ? "Nothing was saved yet; start the run again"
                       : fmt::format("{} is untouched; resume from it", saved),
         bad.bad_parameters() ? "" : " or train.on_bad_step=skip");
  }
  log::warn("{}; skipped", message);
  ++state.skipped_steps;
  outcome.skipped = true;
  if (spikes.active()) engine->skip_update();
  return outcome;
}

// Of all ranks of a model, whose parts of the state differ: parameters first, since only they are beyond
// help.
std::string Trainer::Impl::first_bad_tensor() {
  const auto mine = engine->first_bad_tensor();
  const auto parameter = first_text(mesh.worker(), is_gradient(mine) ? "" : mine);
  return parameter.empty() ? first_text(mesh.worker(), mine) : parameter;
}

// As Evaluator's functions: random sequences, or with 0 the whole split or its first `most` sequences. A
// signal makes all ranks leave it.
Evaluation Trainer::Impl::measure(const std::string& split, std::int64_t sequences, std::int64_t most) {
  Progress progress("evaluating " + split, 0, "sequences");
  const auto draw = show_on(progress);
  const auto show = [&](std::int64_t done, std::int64_t total) {
    draw(done, total);
    share_signals();
    return stop == nullptr;
  };
  const auto found = sequences > 0 ? evaluator->random(split, data.split(split), sequences, show)
                                   : evaluator->whole(data.split(split), most, show);
  progress.clear();
  return found;
}

// Returns whether the val loss is the lowest until now.
bool Trainer::Impl::evaluate() {
  const trace::Span span("evaluation", "evaluation");
  if (news) hear_news(true);
  reporter.clear();
  const double distance = engine->show_average();
  const std::int64_t sequences = eval_sequences(config);
  const auto val = measure("val", sequences);
  // The train split may be huge: as many sequences of it as the val split has.
  const auto train =
      val.left ? Evaluation{}
               : measure("train", sequences, SequentialSampler(data.val(), gpt.block_size).windows());
  // An evaluation that was left is made again when the run goes on.
  state.evaluation_left = val.left || train.left;
  config.gossip.continue_from_average && !state.evaluation_left ? engine->keep_average()
                                                                : engine->drop_average();
  if (state.evaluation_left) return false;
  reporter.evaluation({.step = state.step,
                       .train_loss = train.loss(),
                       .val_loss = val.loss(),
                       .val_accuracy = val.accuracy(),
                       .entropy_floor = data.entropy_per_token(),
                       .consensus_distance = news ? std::optional(distance) : std::nullopt},
                      {.seconds = train_seconds, .steps = train_steps, .total_seconds = state.train_seconds});
  train_seconds = 0;
  train_steps = 0;
  result.val_loss = val.loss();
  if (!(val.loss() < state.best_val_loss)) return false;
  state.best_val_loss = val.loss();
  return true;
}

// After the last step, of data that has a test split with a target in it.
void Trainer::Impl::evaluate_test() {
  if (!evaluates() || !data.has_split("test") || data.split("test").size() < 2) return;
  const trace::Span span("evaluation", "evaluation of the test split");
  engine->show_average();
  const auto test = measure("test", 0);
  engine->drop_average();
  if (test.left)
    return log::info("stopped by {} in the evaluation of the test split; shoal eval --split test makes it",
                     stop);
  reporter.test({.step = state.step, .loss = test.loss(), .accuracy = test.accuracy()});
}

void Trainer::Impl::save(bool best, bool wait) {
  const trace::Span span("checkpoint", "save");
  tell_failed_save(saver->settle());
  failure_told = false;
  if (last_saved == state.step && !best) return;
  state.loss_window = spikes.losses();
  auto info = make_checkpoint_info(described(), gpt, state, tokenizer);
  info.state["data"] = contents;
  add_worker_states(info, state, mesh);
  saver->begin(info, worker_slices(*engine, mesh.shape(), mesh.place()), best);
  last_saved = state.step;
  if (!wait) {
    if (state_on_disk()) tell_failed_save(saver->settle());
    return;
  }
  if (const auto error = saver->settle(); !error.empty()) {
    fail_user(
        "the state after step {} could not be saved: {}. Free some space there (or lower checkpoint.keep) "
        "and go on with init.from=resume",
        state.step, error);
  }
}

void Trainer::Impl::tell_failed_save(const std::string& why) {
  if (why.empty()) return;
  last_saved = -1;
  if (std::exchange(failure_told, true)) return;
  reporter.clear();
  log::warn(
      "a checkpoint could not be saved: {}; training goes on, and earlier checkpoints are untouched. Free "
      "some space before the next one, or the run cannot be resumed from there",
      why);
}

// Of the measured peak. A machine that was busy while it was measured turns out to be faster: then there is
// no peak to compare with.
double Trainer::Impl::share_of_peak(double flops) {
  if (peak_flops > 0 && flops > peak_flops) {
    reporter.clear();
    log::info(
        "steps are faster than the peak that was measured at the start, when the machine was busy: no share "
        "of it is shown");
    peak_flops = 0;
  }
  return peak_flops > 0 ? flops / peak_flops : 0;
}

// By the FLOPs of the steps, before the first of them: right within a factor of two or so.
void Trainer::Impl::guess_time() {
  if (peak_flops <= 0) return;
  constexpr double kUsualShare = 0.4;  // of the peak
  const double per_step = static_cast<double>(step_tokens()) * token_flops / (kUsualShare * peak_flops);
  const auto left = work();
  log::info("time: {}, guessed from the FLOPs", run_time_text(left, per_step));
  if (const auto advice = too_long_advice(config, left, per_step); !advice.empty()) log::warn("{}", advice);
}

// By a few steps, the first of which is slower than the others.
void Trainer::Impl::estimate_time() {
  constexpr std::int64_t kFew = 3, kEnough = 20;
  constexpr double kSeconds = 1;
  if (timed_steps >= kEnough) return;
  if (++timed_steps == 0) return timed.restart();
  const double seconds = timed.seconds();
  if (timed_steps < kEnough && (timed_steps < kFew || seconds < kSeconds)) return;
  const double per_step = seconds / static_cast<double>(timed_steps);
  timed_steps = kEnough;
  reporter.clear();
  const auto left = work();
  if (left.steps > 0) log::info("time: {} to go", run_time_text(left, per_step));
}

// Before the first step, or where the run was stopped in an evaluation.
void Trainer::Impl::evaluate_at_start() {
  const bool fresh = !config.init.resumes();
  const bool wanted =
      fresh && config.eval.at_start && evaluates() && (config.eval.interval > 0 || config.eval.epochs > 0);
  if (!wanted && !state.evaluation_left) return;
  const bool best = evaluate() && config.checkpoint.best;
  if (state.evaluation_left) return;
  if (!fresh) last_saved = -1;  // the checkpoint of this step says that the evaluation is still to come
  if (best || !fresh) save(best, false);
}

void Trainer::Impl::train(BatchLoader& loader) {
  double group_seconds = 0;
  std::int64_t group_steps = 0;
  while (state.step < last_step() && !stop) {
    if (tracer) tracer->begin_step();
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
    estimate_time();

    const double per_step = group_seconds / static_cast<double>(group_steps);
    std::optional<StepRecord> record;
    if (due(config.log.interval, 0)) {
      const double rate = static_cast<double>(step_tokens()) / per_step;
      record = {.step = state.step,
                .loss = outcome.loss,
                .lr = outcome.lr,
                .grad_norm = outcome.grad_norm,
                .tokens = state.tokens,
                .tokens_per_s = rate,
                .ms_per_step = per_step * 1e3,
                .peak_share = share_of_peak(rate * token_flops)};
      group_seconds = 0;
      group_steps = 0;
    }
    if (news) {
      const bool tells = mesh.worker().rank() == 0;
      const bool first_worker = mesh.place().worker == 0;  // which has said why
      news->post({.loss = tells ? outcome.loss : 0,
                  .grad_norm = tells ? outcome.grad_norm : 0,
                  .skipped = tells && outcome.skipped && !first_worker ? 1.0 : 0.0,
                  .step = state.step,
                  .record = record});
      hear_news(false);
    } else if (record) {
      tell(*record);
    }
    reporter.bar(state.step, outcome.loss, seconds_left(per_step));
    if (first()) tell_failed_save(saver->news());
    const bool improved = evaluation_due() && evaluate();
    if (improved && config.checkpoint.best) {
      save(true, false);
    } else if (due(config.checkpoint.interval, config.checkpoint.epochs)) {
      save(false, false);
    }
  }
}

Trainer::Trainer(const Config& config, World& world, Tracer* tracer)
    : impl_(std::make_unique<Impl>(config, world, tracer)) {}
Trainer::~Trainer() {
  if (impl_->first()) log::detach_file();
}

TrainResult Trainer::run() try {
  auto& run = *impl_;
  auto& result = run.result;
  result.val_loss = std::numeric_limits<double>::infinity();
  InterruptGuard guard;
  if (run.state.step >= run.last_step() && !run.state.evaluation_left) {
    log::info("nothing to do: the run has its {} steps; give a larger train.steps to go on", run.last_step());
    return {.step = run.state.step, .val_loss = run.state.best_val_loss};
  }
  const BatchSampler sampler(run.data.train(), run.gpt.block_size, run.config.data.sampling,
                             static_cast<std::uint64_t>(run.config.run.seed), run.config.data.stride);
  BatchLoader loader(sampler, {.first_step = run.state.step,
                               .last_step = run.last_step(),
                               .global_batch = run.config.train.global_batch,
                               .micro_batch = run.config.train.micro_batch,
                               .first = run.first_dealt(),
                               .stride = run.mesh.shape().workers * run.mesh.shape().data,
                               .passes = run.engine->passes()});
  run.guess_time();
  run.evaluate_at_start();
  if (run.stop && run.state.step == 0 && run.last_saved < 0) {
    run.reporter.clear();
    log::info("stopped by {} before step 1; nothing to save", run.stop);
    return {.interrupted = true, .exit_code = InterruptGuard::exit_code(run.stop)};
  }
  const double before = run.state.train_seconds;
  run.train(loader);
  if (run.news) run.hear_news(true);
  run.reporter.clear();
  if (const double waited = loader.waited_seconds();
      waited > std::max(1.0, 0.01 * (run.state.train_seconds - before))) {
    log::warn("steps waited {} for data: the disk of {} may be too slow", format_duration(waited),
              run.config.data.dir);
  }
  run.save(false, true);

  result.step = run.state.step;
  const auto where = run.config.run.path().string();
  if (run.stop && (run.state.step < run.last_step() || run.state.evaluation_left)) {
    result.interrupted = true;
    log::info("stopped by {} after step {}; everything is saved, go on with init.from=resume", run.stop,
              run.state.step);
  } else {
    if (!run.stop) run.evaluate_test();
    const double best = run.state.best_val_loss;
    log::info("done: {} steps in {}{}; the run is in {}", run.state.step,
              format_duration(run.state.train_seconds),
              std::isfinite(best) ? fmt::format(", best val loss {:.4f}", best) : "", where);
  }
  return result;
} catch (...) {
  impl_->ranks.abandon();
  throw;
}

}  // namespace shoal
