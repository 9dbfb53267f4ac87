#include "train/run_saver.h"

#include "core/error.h"
#include "core/log.h"
#include "core/trace.h"
#include "train/start.h"
#include "train/worker_state.h"

namespace shoal {
namespace {

// None where state rests on disk: the memory for a copy is what is not there.
SliceBuffer::Copy copy_for_saves(Backend& backend, const RunPlan& plan) {
  return plan.on_disk() ? SliceBuffer::Copy() : RunSaver::copy_to_host(backend);
}

}  // namespace

SliceBuffer::Copy RunSaver::copy_to_host(Backend& backend) {
  return [&backend](void* to, const void* from, std::size_t bytes) {
    if (!backend.is_device_memory(from)) return copy_host_memory(to, from, bytes);
    const auto elements = static_cast<std::int64_t>(bytes / sizeof(float));
    backend.copy_to_host(to, {const_cast<void*>(from), DType::f32, {elements}});
  };
}

RunSaver::RunSaver(const Config& described, const RunPlan& plan, Runtime& runtime, Reporter& reporter,
                   const std::string& session, std::string tokenizer, nlohmann::json data)
    : described_(described),
      plan_(plan),
      runtime_(runtime),
      reporter_(reporter),
      tokenizer_(std::move(tokenizer)),
      data_(std::move(data)),
      saver_(runtime.ranks(), described.run.path(),
             {.keep = described.checkpoint.keep,
              .copy = copy_for_saves(runtime.backend(), plan),
              .before_sync = [&reporter] { reporter.flush(); },
              .session = session}) {}

CheckpointInfo RunSaver::describe(const TrainState& state, bool best) {
  auto info = make_checkpoint_info(described_, plan_.model, state, tokenizer_);
  info.state["data"] = data_;
  if (best) info.state[kBestName] = true;
  add_worker_states(info, state, runtime_.mesh());
  return info;
}

// Waits for the save under way. Returns its step if it was of the best and failed, else -1.
std::int64_t RunSaver::settle() {
  const auto error = saver_.settle();
  tell_failed(error);
  failure_told_ = false;
  const auto best = std::exchange(saving_best_, -1);
  return error.empty() ? -1 : best;
}

bool RunSaver::has_same_validation_data(const CheckpointInfo& saved) const {
  return shoal::has_same_validation_data(saved, described_, data_);
}

double RunSaver::best_loss() {
  return saver_.best_loss([this](const auto& saved) { return has_same_validation_data(saved); });
}

void RunSaver::settle_best(TrainState& state) {
  if (saving_best_ >= 0 && settle() >= 0) state.best_val_loss = best_loss();
}

bool RunSaver::begin(TrainState& state, bool best) {
  const auto failed = settle();
  if (failed == state.step) {
    best = true;
  } else if (failed >= 0) {
    state.best_val_loss = best_loss();
  }
  if (last_saved_ == state.step && !best) return false;
  auto& mesh = runtime_.mesh();
  saver_.begin(describe(state, best), worker_slices(runtime_.engine(), mesh.shape(), mesh.coordinate()),
               best);
  last_saved_ = state.step;
  if (best) saving_best_ = state.step;
  return true;
}

void RunSaver::save(TrainState& state, bool best) {
  const trace::Span span("checkpoint", "save");
  if (begin(state, best) && plan_.on_disk() && settle() >= 0) state.best_val_loss = best_loss();
}

void RunSaver::save_at_end(TrainState& state) {
  const trace::Span span("checkpoint", "save");
  if (!begin(state, false)) return;
  if (const auto error = saver_.settle(); !error.empty()) {
    fail_user(
        "the state after step {} could not be saved: {}. Free some space there (or lower checkpoint.keep) "
        "and go on with init.from=resume",
        state.step, error);
  }
}

void RunSaver::tell_failures() { tell_failed(saver_.news()); }

void RunSaver::tell_failed(const std::string& why) {
  if (why.empty()) return;
  last_saved_ = -1;
  if (std::exchange(failure_told_, true)) return;
  reporter_.clear();
  log::warn(
      "a checkpoint could not be saved: {}; training goes on, and earlier checkpoints are untouched. Free "
      "some space before the next one, or the run cannot be resumed from there",
      why);
}

}  // namespace shoal
