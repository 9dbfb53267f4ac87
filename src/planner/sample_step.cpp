#include "planner/sample_step.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace shoal {
namespace {

// Whether the time of an update goes into hidden matrices.
bool updates_matrices(const RunPlan& plan, const std::vector<UnitSpec>& units) {
  return make_optimizer(plan.engine.optimizer)->takes_whole_matrices() &&
         std::ranges::any_of(units, [](const UnitSpec& unit) { return unit.trained && unit.matrices > 0; });
}

}  // namespace

std::vector<std::int64_t> updated_elements(const RunPlan& plan, const std::vector<UnitSpec>& units) {
  const bool matrices = updates_matrices(plan, units);
  std::vector<std::int64_t> elements;
  for (const auto& unit : units) {
    const auto size = matrices ? unit.matrices : unit.size;
    elements.push_back(unit.trained ? size : 0);
  }
  return elements;
}

// Hidden matrices are assigned to all data ranks, whatever ZeRO shards (parallel/data/matrix_dealer.h).
int ranks_of_update(const RunPlan& plan, const std::vector<UnitSpec>& units) {
  if (updates_matrices(plan, units)) return plan.mesh.data;
  return plan.engine.zero == 0 ? 1 : plan.mesh.data / plan.engine.replicate;
}

std::int64_t updated_elements(const RunPlan& sample) {
  const auto units = gpt_units(sample.model, sample.part({.tensor = sampled_tensor_rank(sample)}));
  const auto all = updated_elements(sample, units);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0}) / ranks_of_update(sample, units);
}

GptConfig with_blocks(const GptConfig& model, int blocks) {
  auto other = model;
  other.n_layer = blocks;
  if (blocks == model.n_layer || model.frozen.empty()) return other;
  const auto units = gpt_units(model);
  const auto head = static_cast<std::size_t>(model.n_layer) + 1;
  const auto trained = [](const UnitSpec& unit) { return unit.trained; };
  other.frozen.clear();
  if (!units.front().trained) other.frozen.emplace_back("embedding");
  if (std::none_of(units.begin() + 1, units.begin() + head, trained)) other.frozen.emplace_back("block.*");
  if (!units[head].trained) other.frozen.emplace_back("head");
  return other;
}

RunPlan sample_of(const RunPlan& plan) {
  RunPlan sample = plan;
  sample.mesh.pipeline = sample.mesh.workers = 1;
  sample.ranges.clear();
  sample.engine.gossip.reset();
  sample.engine.outer.reset();
  sample.engine.offload.clear();
  sample.engine.micro_batches = kSamplePasses * sample.mesh.data;
  sample.pipeline.stages = 1;
  sample.pipeline.recompute_blocks.clear();
  sample.pipeline.schedule = ScheduleKind::one_f_one_b;
  sample.pipeline.micro_batches = kSamplePasses;
  return sample;
}

// Passes everything on to the engine, and tells which part begins from the order in which units are used.
class SampleStep::Store final : public UnitStore {
 public:
  Store(DataEngine& engine, int blocks) : engine_(engine), head_(blocks + 1) {}

  void begin(const Enter* enter) {
    enter_ = enter;
    pass_ = 0;
    next_ = 0;
  }
  const std::vector<UnitSpec>& units() const override { return engine_.units(); }
  UnitView weights(int unit) override {
    follow(unit);
    return engine_.weights(unit);
  }
  void release(int unit) override { engine_.release(unit); }
  UnitView gradients(int unit, std::span<const ElementRange> products) override {
    follow(unit);
    return engine_.gradients(unit, products);
  }
  UnitView tied_gradients(std::span<const ElementRange> products) override {
    return engine_.tied_gradients(products);
  }
  void gradients_ready(int unit) override { engine_.gradients_ready(unit); }

 private:
  void follow(int unit) {
    // The head uses the embedding's matrix, which is no part of its own.
    if (unit != (next_ <= head_ ? next_ : 2 * head_ - next_) || pass_ == kSamplePasses) return;
    (*enter_)(pass_, part());
    if (++next_ > 2 * head_) {
      next_ = 0;
      ++pass_;
    }
  }
  StepPart part() const {
    if (next_ == 0) return StepPart::embedding_forward;
    if (next_ == 1) return StepPart::first_block_forward;
    if (next_ < head_) return StepPart::block_forward;
    if (next_ == head_) return StepPart::head;
    if (next_ == head_ + 1) return StepPart::last_block_backward;
    return next_ < 2 * head_ ? StepPart::block_backward : StepPart::embedding_backward;
  }

  DataEngine& engine_;
  const int head_;  // its unit, between the last block's forward and backward pass
  const Enter* enter_ = nullptr;
  int pass_ = 0, next_ = 0;  // next_: of a pass, through the units to the head and back
};

SampleStep::SampleStep(Backend& backend, const RunPlan& sample)
    : backend_(backend),
      plan_(sample),
      recording_(sample.mesh.ranks(), sampled_tensor_rank(sample)),
      mesh_(recording_.ranks(), sample.mesh),
      engine_(std::make_unique<DataEngine>(backend, mesh_, plan_.model,
                                           plan_.engine_options(mesh_.coordinate()))),
      store_(std::make_unique<Store>(*engine_, plan_.model.n_layer)),
      model_(std::make_unique<Pipeline>(backend, *store_, mesh_, plan_.model,
                                        plan_.pipeline_options(mesh_.coordinate()))) {
  if (engine_->passes() != kSamplePasses) fail("the sample of a step has {} passes", engine_->passes());
  engine_->initialize(0);  // kernels may be faster with zeros
  batches_.emplace(backend, plan_.pipeline.batch, kSamplePasses, plan_.mesh.data, 0);
  // Tokens of a class that this rank has: the others' rows are zeros here.
  const auto classes = local_classes(plan_.model, plan_.part(mesh_.coordinate()).tensor);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(plan_.pipeline.batch.rows()),
                                         static_cast<std::int32_t>(classes.begin));
  for (const auto& batch : batches_->all()) {
    for (const auto& to : {batch.tokens, batch.targets}) backend.copy_from_host(to, tokens.data());
  }
}

SampleStep::~SampleStep() = default;

void SampleStep::run(const Enter& enter) {
  store_->begin(&enter);
  engine_->begin_step(step_, {1e-4, step_ + 1});
  batches_->begin_step(0, step_++);
  backend_.zero(batches_->losses());
  model_->train(batches_->all(), batches_->losses_here(), 1e-3f);
  backend_.synchronize();
  enter(kSamplePasses, StepPart::embedding_forward);
  engine_->measure_gradient();
  engine_->update();
  backend_.synchronize();
}

void SampleStep::synchronize() { backend_.synchronize(); }

int SampleStep::count(StepPart part) const {
  const bool others = part == StepPart::block_forward || part == StepPart::block_backward;
  return others ? plan_.model.n_layer - 1 : 1;
}

}  // namespace shoal
