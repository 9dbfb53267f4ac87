// A training step: the gradient of this rank's micro-batches, its sum over the ranks, the update. All of it
// is queued before the host reads a result, so the host waits once; with `capture` it is replayed as a graph.
#pragma once

#include <functional>
#include <vector>

#include "data/batch_loader.h"
#include "ops/graph_replay.h"
#include "parallel/data/data_engine.h"
#include "train/step_batches.h"

namespace shoal {

class TrainingStep {
 public:
  struct Options {
    std::uint64_t seed = 0;
    std::int64_t tokens = 1;   // of a step; the loss is their mean
    bool with_signals = true;  // this rank's signals are added up with the losses
    bool updates = true;       // else that is the caller's: whether there is an update depends on the losses
    bool capture = false;      // as a graph, where the backend can
    // Called in every step before the state changes, and before the losses are summed over the ranks.
    std::function<void()> before_change = {};
  };
  struct Outcome {
    std::vector<double> losses;  // summed, of all micro-batches in their order; zeros behind the last
    std::array<double, InterruptGuard::kSignals> signals{};  // of all ranks
    double grad_norm = 0;
  };

  // Losses are added up over `group`, whose ranks have the step's micro-batches. All must outlive this.
  TrainingStep(Backend& backend, DataEngine& engine, Pipeline& model, Mesh& mesh, Communicator& group,
               const Options& options);

  // Collective over the mesh. Steps count from 0.
  Outcome run(std::int64_t step, const Update& update, BatchLoader& loader);
  // The same of whatever is in the batches' memory, and without waiting for what comes out.
  void ask(std::int64_t step, const Update& update);

  bool captures() const { return replay_.captures(); }

 private:
  void begin(std::int64_t step, const Update& update);
  void compute(std::int64_t step);

  Backend& backend_;
  DataEngine& engine_;
  Pipeline& model_;
  Communicator& group_;
  Options options_;
  bool tells_loss_;  // exactly one of the ranks that know a loss does
  StepBatches batches_;
  GraphReplay replay_;
  bool changes_late_;  // the state changes only after the gradient has been computed
};

}  // namespace shoal
