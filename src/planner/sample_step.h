// A step of one rank on a sample of its model, with some of its blocks and three micro-batches, made by the
// engine and the layers of training. On a real backend it measures the parts that the steps of a deeper model
// repeat; on one that only records, it lists their kernels and collectives.
#pragma once

#include <functional>
#include <optional>

#include "comm/recording.h"
#include "config/plan.h"
#include "parallel/data/data_engine.h"
#include "train/step_batches.h"

namespace shoal {

// The parts of a micro-batch, in their order. The two that say "block" are those of all other blocks.
enum class StepPart : std::uint8_t {
  embedding_forward,
  first_block_forward,  // a plain norm; in the others it is fused with the residual addition before it
  block_forward,
  head,                 // forward and backward
  last_block_backward,  // never recomputed in this sample
  block_backward,       // recomputed where the plan says so
  embedding_backward,
};
inline constexpr int kStepParts = 7, kSamplePasses = 3;

// The plan of the sample: all blocks, without stages, gossip and files.
RunPlan sample_of(const RunPlan& plan);

// The model with so many blocks instead of its own. They are all frozen where all of its own are, else none:
// patterns of numbers would mean others.
GptConfig with_blocks(const GptConfig& model, int blocks);

// The elements of each unit that the time of an update is in proportion to: those that are trained, or of
// them the hidden matrices where there are some and the optimizer takes its time for them.
std::vector<std::int64_t> updated_elements(const RunPlan& plan, const std::vector<UnitSpec>& units);
// The number of ranks that share them.
int ranks_of_update(const RunPlan& plan, const std::vector<UnitSpec>& units);
// All such elements of sampled_tensor_rank() of a plan from sample_of().
std::int64_t updated_elements(const RunPlan& sample);

// The tensor rank whose sample is taken: its shares are the largest, where they differ.
inline int sampled_tensor_rank(const RunPlan& plan) { return plan.mesh.tensor - 1; }

class SampleStep {
 public:
  // Called when a part of a pass begins, for each of its blocks; after the last part with pass =
  // kSamplePasses, when the update begins.
  using Enter = std::function<void(int pass, StepPart part)>;

  // For sampled_tensor_rank() of a plan from sample_of(), with two blocks or more. Allocates everything on
  // the backend, which must outlive this.
  SampleStep(Backend& backend, const RunPlan& sample);
  ~SampleStep();

  void run(const Enter& enter);
  // Waits for what has been queued, so that a part's time is its own.
  void synchronize();
  // The number of times that a pass enters a part.
  int count(StepPart part) const;
  const Recording& recording() const { return recording_; }

 private:
  class Store;
  Backend& backend_;
  const RunPlan plan_;
  Recording recording_;
  Mesh mesh_;
  std::unique_ptr<DataEngine> engine_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Pipeline> model_;
  std::optional<StepBatches> batches_;
  std::int64_t step_ = 0;
};

}  // namespace shoal
