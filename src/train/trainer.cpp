#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "comm/agreement.h"
#include "config/memory.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "core/trace.h"
#include "data/batch_loader.h"
#include "report/tracer.h"
#include "train/bad_step.h"
#include "train/calendar.h"
#include "train/disk_space.h"
#include "train/gradient_verifier.h"
#include "train/memory_checkpoints.h"
#include "train/prepare_run.h"
#include "train/remedies.h"
#include "train/run_saver.h"
#include "train/runtime.h"
#include "train/spike.h"
#include "train/start.h"
#include "train/summary.h"
#include "train/time_estimate.h"
#include "train/training_step.h"
#include "train/validation.h"
#include "train/worker_state.h"
#include "train/worker_sums.h"

namespace shoal {

// The parts of a run on this rank, in the order in which they are made.
struct Trainer::Run {
  World& world;
  Tracer* tracer;                     // or null
  std::function<void()> before_step;  // may be empty
  Config config;                      // resolved for the ranks and the data
  Config described;                   // the config that checkpoints hold
  Mixture data;
  RunPlan plan;
  Runtime runtime;
  RunDirectory directory;

  Calendar calendar{config, windows_of_epoch(config, data)};
  LrSchedule schedule = lr_schedule(config);
  Reporter reporter = {};
  StopRequest stop = {};
  SpikeDetector spikes{config.train.spike_zscore, config.train.spike_window};
  TrainState state = {};
  std::unique_ptr<RunSaver> saver = {};
  std::optional<TrainingStep> training_step = {};
  std::optional<Validation> validation = {};
  std::optional<MemoryCheckpoints> memory = {};
  std::optional<GradientVerifier> verifier = {};
  std::optional<WorkerSums> worker_sums = {};  // where there are several workers

  double peak_flops = 0;  // of all ranks; 0: unknown
  TimeEstimate estimate = {};
  TrainTime since_evaluation = {};
  bool test_left = false;    // of a run that is over but for it
  double group_seconds = 0;  // since the last log line
  std::int64_t group_steps = 0;
  TrainResult result = {.val_loss = std::numeric_limits<double>::infinity()};

  // One step's numbers, the same on every rank of a worker.
  struct Outcome {
    double lr = 0;
    double loss = 0;
    double grad_norm = 0;
    bool skipped = false;
  };

  bool first() const { return world.ranks.rank() == 0; }
  Communicator& ranks() { return runtime.ranks(); }
  Mesh& mesh() { return runtime.mesh(); }
  DataEngine& engine() { return runtime.engine(); }
  std::int64_t step_tokens() const {
    return static_cast<std::int64_t>(config.train.global_batch) * config.model.block_size;
  }
  std::int64_t worker_tokens() const { return step_tokens() / plan.mesh.workers; }
  double step_flops() const { return static_cast<double>(step_tokens()) * flops_per_token(plan.model); }
  RunWork work_left_now() const {
    return work_left(config, state.step, data.tokens("train"), data.tokens("val"),
                     windows_of_epoch(config, data));
  }
  double seconds_left(double per_step) const {
    return per_step * static_cast<double>(calendar.last_step() - state.step);
  }
  // Whether an update depends on what the host finds of the step. The outer optimizer moves models in the
  // memory of gradients, in which a bad step's tensor is sought.
  bool decides() const { return spikes.active() || plan.engine.outer.has_value(); }
  // Early stopping.
  bool stands_still() const {
    return config.eval.patience > 0 && state.evaluations_since_best >= config.eval.patience;
  }
  // All but the evaluation of the test split, which may be left.
  bool is_over() const {
    return (state.step >= calendar.last_step() || stands_still()) && !state.evaluation_left;
  }

  void start(const Config& given);
  void load(const std::filesystem::path& from);
  Outcome step(BatchLoader& loader);
  Outcome give_up(Outcome outcome, const std::vector<double>& losses, const std::string& why);
  std::string first_bad_tensor();
  void verify();
  std::string saved_text();
  void count(const Outcome& outcome, double seconds);
  std::optional<StepRecord> log_record(const Outcome& outcome);
  double share_of_peak(double flops);
  void tell(const StepRecord& record) { reporter.step(record, seconds_left(record.ms_per_step / 1e3)); }
  void post_sums(const Outcome& outcome, const std::optional<StepRecord>& record);
  void read_sums(bool all);
  bool evaluate();
  void evaluate_at_start();
  void start_memory();
  void save_in_memory(bool best);
  // The parts of the state that no step keeps up to date.
  void update_state() {
    state.loss_window = spikes.losses();
    state.workers_equal = plan.mesh.workers > 1 && !engine().workers_differ();
  }
  void save(bool best) {
    read_sums(true);  // or a run that goes on from here would lack their records
    update_state();
    saver->save(state, best);
  }
  void train(BatchLoader& loader);
  void end();
  bool find_test_left();
  void test();
};

namespace {

// The number of ranks is no part of the run: another may go on with it.
Config described_config(const Config& resolved, const Config& given) {
  Config described = resolved;
  described.init.other_data = false;
  described.parallel.data = given.parallel.data;
  described.gossip.local_size = given.gossip.local_size;
  // A decay to the end follows the run's length, also where that changes.
  const auto& schedule = given.lr_schedule;
  if (schedule.decay_steps == 0 && schedule.decay_tokens == 0) described.lr_schedule.decay_steps = 0;
  return described;
}

}  // namespace

Trainer::Trainer(const Config& given, World& world, Tracer* tracer, std::function<void()> before_step) try {
  Config config = agree_on_config(given, world);
  Mixture data = open_data(config, world);  // which decides parts of the config
  RunPlan plan = agree_on_plan(config, world);
  Runtime runtime(plan, world.ranks, backend_options(given, world));
  auto directory = take_run_directory(config, plan, world);
  run_.reset(new Run{.world = world,
                     .tracer = tracer,
                     .before_step = std::move(before_step),
                     .config = config,
                     .described = described_config(config, given),
                     .data = std::move(data),
                     .plan = std::move(plan),
                     .runtime = std::move(runtime),
                     .directory = std::move(directory)});
  run_->start(given);
} catch (...) {
  rethrow_with_remedy();
}

Trainer::~Trainer() {
  if (run_->first()) log::detach_file();
}

void Trainer::Run::start(const Config& given) {
  const bool resuming = config.init.resumes();
  saver = std::make_unique<RunSaver>(described, plan, runtime, reporter, directory.session,
                                     data.tokenizer_text(), describe_contents(data));
  auto wanted = described;
  wanted.init.other_data = given.init.other_data;
  const auto from = find_start(wanted, data, counts_in_steps(given), ranks());
  if (first()) log::attach_file(config.run.path() / "train.log");
  some_for_all(ranks(), first(), [&] {
    write_config(described, "config.toml");
    auto planned = config;  // in the layout of this start
    planned.lr_schedule.decay_steps = described.lr_schedule.decay_steps;
    write_config(planned, "plan.toml");
  });
  log_summary(config, plan, data, world);
  if (first()) warn_of_small_disk(config, plan);
  if (!runtime.exchange().empty()) log::info("between GPUs: {}", runtime.exchange());
  if (tracer) tracer->set_place(to_string(mesh().coordinate(), mesh().shape()));

  peak_flops = config.log.peak_tflops > 0 ? config.log.peak_tflops * 1e12
                                          : runtime.backend().measure_peak_flops(config.train.dtype);
  ranks().all_reduce({&peak_flops, DType::f64, {1}}).wait();
  runtime.allocate(plan, Runtime::Use::training);
  const int workers = plan.mesh.workers;
  // Traces, checksums and decisions of the host cannot be captured in a graph either.
  const bool can_capture =
      plan.can_capture_steps() && !(tracer && tracer->traces()) && !spikes.active() && config.run.verify == 0;
  training_step.emplace(runtime.backend(), engine(), runtime.model(), mesh(),
                        workers > 1 ? mesh().worker() : ranks(),
                        TrainingStep::Options{.seed = static_cast<std::uint64_t>(config.run.seed),
                                              .tokens = worker_tokens(),
                                              .with_signals = workers == 1,
                                              .updates = !decides(),
                                              .capture = can_capture,
                                              .before_change = [this] {
                                                if (memory) memory->wait();
                                                if (verifier) verify();
                                              }});
  if (training_step->captures())
    log::info("the second step is captured as a graph, which later steps replay");
  validation.emplace(config, plan, data, runtime, reporter, stop);
  if (workers > 1) worker_sums.emplace(ranks(), *plan.topology(), plan.steps_of_round());

  // Adapters may be new where the other parameters are read.
  if (!from || config.lora.rank > 0) engine().initialize(static_cast<std::uint64_t>(config.run.seed));
  if (from) load(*from);
  start_memory();
  test_left = find_test_left();
  if (is_over() && !test_left) return;  // nothing will be measured
  some_for_all(ranks(), first(), [&] {
    reporter =
        Reporter(config, data.entropy_per_token(),
                 resuming ? std::optional<ResumePoint>({state.step, state.evaluation_left}) : std::nullopt);
  });
}

// Parameters, and where the run is resumed its state.
void Trainer::Run::load(const std::filesystem::path& from) {
  const bool resuming = config.init.resumes();
  all_or_none(ranks(), [&] {
    try {
      state = read_start(config, from, engine(), runtime.backend(), mesh().shape(), mesh().coordinate());
    } catch (const UserError& error) {
      if (!resuming) throw;
      throw with_older_checkpoint(error, from);
    }
  });
  engine().state_loaded(resuming, state.step == 0 || state.workers_equal);
  if (!resuming) return;
  if (state.step > 0 && state.step == calendar.last_step() && calendar.evaluates()) {
    // A run whose length was set to where it stands: its last step may lack an evaluation.
    const auto saved = config_of(CheckpointReader(from, Verify::sizes));
    if (!Calendar(saved, windows_of_epoch(saved, data)).evaluates(state.step)) state.evaluation_left = true;
  }
  spikes = SpikeDetector(config.train.spike_zscore, config.train.spike_window, state.loss_window);
  saver->set_saved(state.step);
  if (!saver->has_same_validation_data(read_manifest(from).info)) {
    log::info("the validation data are others than the checkpoint's: the best val loss is sought anew");
    state.best_val_loss = std::numeric_limits<double>::infinity();
    state.evaluations_since_best = 0;
  }
  if (!config.checkpoint.best) return;
  saver->store().mend_best(from);
  state.best_val_loss = saver->best_loss();
}

Trainer::Run::Outcome Trainer::Run::step(BatchLoader& loader) {
  const trace::Span span("step", fmt::format("step {}", state.step + 1));
  const double lr = schedule.at(state.step);
  if (verifier) verifier->begin(state.step);
  auto found = training_step->run(state.step, {lr, state.step + 1 - state.skipped_steps}, loader);
  if (!worker_sums) stop.hear(found.signals);
  auto& losses = found.losses;
  losses.resize(static_cast<std::size_t>(plan.micro_batches()));
  Outcome outcome{.lr = lr, .grad_norm = found.grad_norm};
  outcome.loss = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(worker_tokens());
  if (!std::isfinite(outcome.loss)) return give_up(outcome, losses, "the loss is not finite");
  if (!std::isfinite(outcome.grad_norm)) return give_up(outcome, losses, "the gradient is not finite");
  if (spikes.is_spike(outcome.loss)) {
    return give_up(outcome, losses,
                   fmt::format("the loss, {:.4f}, is {:.1f} standard deviations above the last {} steps",
                               outcome.loss, spikes.zscore(outcome.loss), config.train.spike_window));
  }
  if (!decides()) return outcome;
  if (spikes.active()) spikes.add(outcome.loss);
  const trace::Span of_update("optimizer", "update");
  engine().update();
  return outcome;
}

// Ends the run, or leaves the step's update out, as train.on_bad_step says.
Trainer::Run::Outcome Trainer::Run::give_up(Outcome outcome, const std::vector<double>& losses,
                                            const std::string& why) {
  const BadStep bad{.step = state.step + 1,
                    .worker = mesh().coordinate().worker,
                    .workers = plan.mesh.workers,
                    .why = why,
                    .losses = losses,
                    .tensor = first_bad_tensor()};
  const auto message = bad.describe(config);
  reporter.clear();
  if (config.train.on_bad_step == OnBadStep::stop || bad.bad_parameters()) {
    fail("{}. {}, with a lower optim.lr{}", message, saved_text(),
         bad.bad_parameters() ? "" : " or train.on_bad_step=skip");
  }
  log::warn("{}; skipped", message);
  ++state.skipped_steps;
  outcome.skipped = true;
  if (decides()) engine().skip_update();
  return outcome;
}

// Ends the run where ranks do not compute the same gradient.
void Trainer::Run::verify() {
  const auto fault = verifier->difference();
  if (fault.empty()) return;
  reporter.clear();
  fail("{}. {}", fault, saved_text());
}

// Names the checkpoint to go back to, and drops the newer states in memory, which led to the failure: this
// host's, and the copies on others.
std::string Trainer::Run::saved_text() {
  if (memory) {
    discard_session(config.run.path());
    memory->discard();
  }
  if (!worker_sums) saver->store().settle();  // other workers are not here
  const auto latest = saver->store().latest();
  const auto saved = broadcast_text(mesh().worker(), latest ? latest->string() : "");
  return saved.empty() ? "Nothing was saved yet; start the run again"
                       : fmt::format("{} is untouched; resume from it", saved);
}

// On any rank of the worker, whose parts of the state differ. Parameters come first: they are beyond help.
std::string Trainer::Run::first_bad_tensor() {
  const auto mine = engine().first_bad_tensor();
  const auto parameter = first_text(mesh().worker(), is_gradient(mine) ? "" : mine);
  return parameter.empty() ? first_text(mesh().worker(), mine) : parameter;
}

void Trainer::Run::count(const Outcome& outcome, double seconds) {
  state.train_seconds += seconds;
  since_evaluation.seconds += seconds;
  ++since_evaluation.steps;
  group_seconds += seconds;
  ++group_steps;
  ++state.step;
  state.tokens += step_tokens();
  result.train_loss = outcome.loss;
  if (!estimate.count_step(seconds)) return;
  reporter.clear();
  if (const auto left = work_left_now(); left.steps > 0) {
    log::info("time: {} to go", run_time_text(left, estimate.seconds_per_step()));
  }
}

// The record of the steps since the last one, where it is time for it.
std::optional<StepRecord> Trainer::Run::log_record(const Outcome& outcome) {
  if (!calendar.logs(state.step)) return std::nullopt;
  const double per_step = group_seconds / static_cast<double>(group_steps);
  group_seconds = 0;
  group_steps = 0;
  const auto ranks = RankCounts::of(world);
  return StepRecord{.step = state.step,
                    .loss = outcome.loss,
                    .lr = outcome.lr,
                    .grad_norm = outcome.grad_norm,
                    .tokens = state.tokens,
                    .tokens_per_s = static_cast<double>(step_tokens()) / per_step,
                    .ms_per_step = per_step * 1e3,
                    .peak_share = share_of_peak(step_flops() / per_step),
                    .memory_per_rank = peak_memory() / (ranks.threads ? ranks.world_size : 1)};
}

// A machine that was busy while its peak was measured turns out to be faster: then there is no peak to
// compare with.
double Trainer::Run::share_of_peak(double flops) {
  if (peak_flops > 0 && flops > peak_flops) {
    reporter.clear();
    log::info("steps are faster than the peak that {}: no share of it is shown",
              config.log.peak_tflops > 0 ? "log.peak_tflops gives"
                                         : "was measured at the start, when the machine was busy");
    peak_flops = 0;
  }
  return peak_flops > 0 ? flops / peak_flops : 0;
}

void Trainer::Run::post_sums(const Outcome& outcome, const std::optional<StepRecord>& record) {
  const bool tells = mesh().worker().rank() == 0;
  const bool first_worker = mesh().coordinate().worker == 0;  // which has logged a skipped step itself
  worker_sums->post({.loss = tells ? outcome.loss : 0,
                     .grad_norm = tells ? outcome.grad_norm : 0,
                     .skipped = tells && outcome.skipped && !first_worker ? 1.0 : 0.0,
                     .step = state.step,
                     .record = record});
}

// Where there are several workers, reads the sums of steps that others may not have made yet when this one
// did.
void Trainer::Run::read_sums(bool all) {
  if (!worker_sums) return;
  while (const auto sums = worker_sums->next(all)) {
    stop.hear(sums->signals);
    result.train_loss = sums->loss;
    if (sums->skipped > 0) {
      reporter.clear();
      log::warn("step {}: skipped by {:.0f} of the workers beside the first", sums->step, sums->skipped);
    }
    if (sums->record) tell(*sums->record);
  }
}

bool Trainer::Run::evaluate() {
  read_sums(true);
  saver->settle_best(state);
  since_evaluation.total_seconds = state.train_seconds;
  const bool best = validation->run(state, since_evaluation);
  if (!state.evaluation_left) since_evaluation = {};
  result.val_loss = validation->val_loss();
  return best;
}

// Before the first step, or where the run was stopped in an evaluation.
void Trainer::Run::evaluate_at_start() {
  const bool fresh = !config.init.resumes();
  if (!(fresh && calendar.evaluates_at_start()) && !state.evaluation_left) return;
  const bool best = evaluate() && config.checkpoint.best;
  if (state.evaluation_left) return;
  if (!fresh) saver->set_unsaved();  // the checkpoint of this step says that the evaluation is still to come
  if (best || !fresh) save(best);
}

void Trainer::Run::train(BatchLoader& loader) {
  while (state.step < calendar.last_step() && !stands_still() && !stop) {
    if (tracer) tracer->begin_step();
    if (before_step) before_step();
    const Stopwatch watch;
    const auto outcome = step(loader);
    const double seconds = watch.seconds();
    count(outcome, seconds);
    const double left = seconds_left(group_seconds / static_cast<double>(group_steps));
    const auto record = log_record(outcome);
    if (worker_sums) {
      post_sums(outcome, record);
      read_sums(false);
    } else if (record) {
      tell(*record);
    }
    reporter.bar(state.step, outcome.loss, left);
    if (first()) saver->tell_failures();
    const bool best = calendar.evaluates(state.step) && evaluate() && config.checkpoint.best;
    if (best || calendar.saves(state.step)) save(best);
    if (memory && calendar.saves_in_memory(state.step)) save_in_memory(best);
  }
  read_sums(true);
}

// The state that an earlier process left in this host's memory is on the disk by now, or not needed.
void Trainer::Run::start_memory() {
  const auto run = config.run.path();
  if (is_over() || !config.checkpoint.memory) {
    if (world.local_rank == 0) MemoryFolder(config.checkpoint.memory_dir, run, directory.session).remove();
    return;
  }
  const auto bytes = shard_bytes(worker_slices(engine(), mesh().shape(), mesh().coordinate()));
  memory.emplace(world, config.checkpoint, run, directory.session, bytes, runtime.backend());
}

void Trainer::Run::save_in_memory(bool best) {
  memory->wait();
  if (worker_sums) {  // other workers may be at an earlier step
    read_sums(true);
    ranks().barrier();
  }
  update_state();
  memory->begin(saver->describe(state, best), worker_slices(engine(), mesh().shape(), mesh().coordinate()));
}

// Saves the state, and says how the run ended.
void Trainer::Run::end() {
  update_state();
  saver->save_at_end(state);
  if (memory) memory->remove();
  result.step = state.step;
  result.interrupted = stop && !is_over();
  if (result.interrupted) {
    return log::info("stopped by {} after step {}; everything is saved, go on with init.from=resume",
                     stop.signal(), state.step);
  }
  if (stands_still()) {
    log::info("stopped early: {} evaluations in a row have not lowered the val loss (eval.patience)",
              state.evaluations_since_best);
  }
  if (calendar.evaluates() && validation->tests()) test();
  const double best = state.best_val_loss;
  log::info("done: {} steps in {}{}; the run is in {}", state.step, format_duration(state.train_seconds),
            std::isfinite(best) ? fmt::format(", best val loss {:.4f}", best) : "",
            config.run.path().string());
}

// Whether the process ended in the evaluation of the test split: everything else of the run is there.
bool Trainer::Run::find_test_left() {
  if (!is_over() || !config.log.jsonl || !calendar.evaluates() || !validation->tests()) return false;
  int left = 0;
  some_for_all(ranks(), first(), [&] {
    const auto path = config.run.path() / "metrics.jsonl";
    left = std::filesystem::exists(path) && !has_test_record(path) ? 1 : 0;
  });
  ranks().broadcast({&left, DType::i32, {1}}, 0).wait();
  return left != 0;
}

void Trainer::Run::test() {
  if (!stop && validation->test(state.step)) return;
  log::info("stopped by {} before the end of the evaluation of the test split; {}", stop.signal(),
            config.log.jsonl ? "init.from=resume makes it" : "shoal eval --split test makes it");
}

TrainResult Trainer::run() try {
  auto& run = *run_;
  InterruptGuard guard;
  if (run.is_over()) {
    if (run.test_left) {
      log::info("the run has all its steps; what is left is the evaluation of the test split");
      run.test();
      return {.step = run.state.step, .val_loss = run.state.best_val_loss};
    }
    log::info("nothing to do: the run {}",
              run.stands_still() ? "has stopped early; give a larger eval.patience to go on"
                                 : fmt::format("has its {} steps; give a larger train.steps to go on",
                                               run.calendar.last_step()));
    return {.step = run.state.step, .val_loss = run.state.best_val_loss};
  }
  const auto& config = run.config;
  const BatchSampler sampler(run.data.split("train"), run.plan.model.block_size, config.data.sampling,
                             static_cast<std::uint64_t>(config.run.seed), config.data.stride);
  const auto& mesh = run.mesh();
  // Micro-batches go to workers in turn, and a worker's to its data ranks.
  const int workers = mesh.shape().workers;
  BatchLoader loader(sampler, {.first_step = run.state.step,
                               .last_step = run.calendar.last_step(),
                               .global_batch = config.train.global_batch,
                               .micro_batch = config.train.micro_batch,
                               .first = run.engine().first_micro_batch() * workers + mesh.coordinate().worker,
                               .stride = workers * mesh.shape().data,
                               .passes = run.engine().passes()});
  if (config.run.verify > 0) {
    run.verifier.emplace(run.runtime.backend(), run.engine(), run.runtime.model(), run.mesh(), sampler,
                         GradientVerifier::Options{.interval = config.run.verify,
                                                   .seed = static_cast<std::uint64_t>(config.run.seed),
                                                   .global_batch = config.train.global_batch,
                                                   .micro_batch = config.train.micro_batch,
                                                   .tokens = run.worker_tokens()});
  }
  run.estimate.guess(config, run.work_left_now(), run.step_flops(), run.peak_flops);
  run.evaluate_at_start();
  if (run.stop && run.state.step == 0 && !run.saver->has_saved()) {
    run.reporter.clear();
    log::info("stopped by {} before step 1; nothing to save", run.stop.signal());
    if (run.memory) run.memory->remove();
    return {.interrupted = true, .exit_code = InterruptGuard::exit_code(run.stop.signal())};
  }
  const double before = run.state.train_seconds;
  run.train(loader);
  run.reporter.clear();
  if (const double waited = loader.waited_seconds();
      waited > std::max(1.0, 0.01 * (run.state.train_seconds - before))) {
    log::warn("steps waited {} for data: the disk of {} may be too slow", format_duration(waited),
              run.data.description());
  }
  run.end();
  return run.result;
} catch (...) {
  try {
    rethrow_with_remedy();
  } catch (...) {
    run_->ranks().abandon();
    throw;
  }
}

}  // namespace shoal
