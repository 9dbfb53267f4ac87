#include "train/runtime.h"

#include "train/remedies.h"

namespace shoal {

Runtime::Runtime(const RunPlan& plan, Communicator& group, const BackendOptions& options) try
    : backend_(make_backend(plan.backend, options)),
      connected_(connect_backends(*backend_, group, plan.exchange)),
      mesh_(std::make_unique<Mesh>(*connected_.ranks, plan.mesh)) {
} catch (...) {
  rethrow_with_remedy();
}

void Runtime::allocate(const RunPlan& plan, Use use) try {
  auto engine = plan.engine_options(mesh_->coordinate());
  engine.training = use == Use::training;
  engine_ = std::make_unique<DataEngine>(*backend_, *mesh_, plan.model, engine);
  if (use == Use::parameters) return;
  auto pipeline = plan.pipeline_options(mesh_->coordinate());
  pipeline.backward = use == Use::training;
  model_ = std::make_unique<Pipeline>(*backend_, *engine_, *mesh_, plan.model, pipeline);
} catch (...) {
  rethrow_with_remedy();
}

Generator make_generator(const Runtime& runtime, const RunPlan& plan, int texts) {
  return {runtime.backend(),
          runtime.engine(),
          plan.model,
          plan.engine.compute,
          texts,
          TensorGroup(runtime.mesh().tensor(), false),
          plan.can_capture_steps()};
}

}  // namespace shoal
