#include "planner/sample_step.h"

#include "core/error.h"

namespace shoal {

RunPlan sample_of(const RunPlan& plan) {
  RunPlan sample = plan;
  sample.model.n_layer = 2;
  sample.mesh.pipeline = sample.mesh.workers = 1;
  sample.ranges.clear();
  sample.engine.gossip.reset();
  sample.engine.offload.clear();
  sample.engine.on_host = false;
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
  explicit Store(DataEngine& engine) : engine_(engine) {}

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
  UnitView gradients(int unit) override {
    follow(unit);
    return engine_.gradients(unit);
  }
  UnitView tied_gradients() override { return engine_.tied_gradients(); }
  void gradients_ready(int unit) override { engine_.gradients_ready(unit); }

 private:
  void follow(int unit) {
    constexpr int kUnits[kStepParts] = {0, 1, 2, 3, 2, 1, 0};
    // The head uses the embedding's matrix, which is no part of its own.
    if (unit != kUnits[next_] || pass_ == kSamplePasses) return;
    (*enter_)(pass_, static_cast<StepPart>(next_));
    if (++next_ == kStepParts) {
      next_ = 0;
      ++pass_;
    }
  }

  DataEngine& engine_;
  const Enter* enter_ = nullptr;
  int pass_ = 0, next_ = 0;
};

SampleStep::SampleStep(Backend& backend, const RunPlan& sample)
    : backend_(backend),
      plan_(sample),
      recording_(sample.mesh.ranks(), 0),
      mesh_(recording_.ranks(), sample.mesh),
      engine_(std::make_unique<DataEngine>(backend, mesh_, plan_.model,
                                           plan_.engine_options(mesh_.coordinate()))),
      store_(std::make_unique<Store>(*engine_)),
      model_(std::make_unique<Pipeline>(backend, *store_, mesh_, plan_.model,
                                        plan_.pipeline_options(mesh_.coordinate()))) {
  if (engine_->passes() != kSamplePasses) fail("the sample of a step has {} passes", engine_->passes());
  batches_.emplace(backend, plan_.pipeline.batch, kSamplePasses, plan_.mesh.data, 0);
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

std::int64_t SampleStep::updated_elements() const {
  std::int64_t elements = 0;
  for (const auto& unit : engine_->units()) {
    if (unit.trained) elements += unit.size;
  }
  return plan_.engine.zero == 0 ? elements : elements / (plan_.mesh.data / plan_.engine.replicate);
}

}  // namespace shoal
