// Saves a run's checkpoints, and decides what a failed save means.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/plan.h"
#include "report/reporter.h"
#include "train/model_io.h"
#include "train/runtime.h"
#include "train/saver.h"

namespace shoal {

class RunSaver {
 public:
  // `described`: the config as checkpoints hold it; `session`: the name of this start (train/prepare_run.h);
  // `data`: the splits' checksums (train/start.h). All but the strings must outlive this. Collective.
  RunSaver(const Config& described, const RunPlan& plan, Runtime& runtime, Reporter& reporter,
           const std::string& session, std::string tokenizer, nlohmann::json data);

  // The metadata of a checkpoint of this state, which is the best so far or not. Collective.
  CheckpointInfo describe(const TrainState& state, bool best);
  // Copies data to host memory, from wherever the backend has it.
  static SliceBuffer::Copy copy_to_host(Backend& backend);

  // Saves the state of `state.step`, unless that has been done; in the background where memory allows. A save
  // that fails is logged, once, and training goes on. Collective.
  void save(TrainState& state, bool best);
  // The same, and waits. Throws UserError when it fails.
  void save_at_end(TrainState& state);

  // A loss counts as the best only where it has a checkpoint: where that of the last best failed, the best is
  // again the one before. Collective.
  void settle_best(TrainState& state);
  // Infinity where there is none, or it is of other validation data. Collective.
  double best_loss();
  bool has_same_validation_data(const CheckpointInfo& saved) const;

  // Rank 0: logs a failure as soon as it is known.
  void tell_failures();
  // The state after `step` steps is saved, or is not any more.
  void set_saved(std::int64_t step) { last_saved_ = step; }
  void set_unsaved() { last_saved_ = -1; }
  bool has_saved() const { return last_saved_ >= 0; }

  Saver& store() { return saver_; }

 private:
  void tell_failed(const std::string& why);
  std::int64_t settle();
  bool begin(TrainState& state, bool best);

  const Config& described_;
  const RunPlan& plan_;
  Runtime& runtime_;
  Reporter& reporter_;
  std::string tokenizer_;
  nlohmann::json data_;
  Saver saver_;
  std::int64_t last_saved_ = -1;
  std::int64_t saving_best_ = -1;  // the step of the save under way, if it is of the best
  bool failure_told_ = false;      // of the last save
};

}  // namespace shoal
