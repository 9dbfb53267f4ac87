#include "train/training_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/trace.h"

namespace shoal {

TrainingStep::TrainingStep(Backend& backend, DataEngine& engine, Pipeline& model, Mesh& mesh,
                           Communicator& group, const Options& options)
    : backend_(backend),
      engine_(engine),
      model_(model),
      group_(group),
      options_(options),
      tells_loss_(model.has_loss() && mesh.coordinate().tensor == 0),
      batches_(backend, model.options().batch, engine.passes(), mesh.shape().data,
               engine.first_micro_batch()),
      replay_(backend, options.capture),
      changes_late_(!engine.updates_in_backward() && !replay_.captures()) {}

void TrainingStep::begin(std::int64_t step, const Update& update) {
  engine_.begin_step(step, update);
  batches_.begin_step(options_.seed, step);
}

void TrainingStep::ask(std::int64_t step, const Update& update) {
  begin(step, update);
  compute(step);
}

TrainingStep::Outcome TrainingStep::run(std::int64_t step, const Update& update, BatchLoader& loader) {
  begin(step, update);
  for (int pass = 0; pass < engine_.passes(); ++pass) batches_.fill(pass, loader.next());
  const auto signals = InterruptGuard::counts();
  backend_.copy_from_host(batches_.signals(), signals.data());
  if (options_.before_change && !changes_late_) options_.before_change();
  replay_([&] { compute(step); });

  const Tensor sums = batches_.losses_and_signals();
  Outcome outcome;
  outcome.losses.resize(static_cast<std::size_t>(sums.count()));
  backend_.copy_to_host(outcome.losses.data(), sums);
  const auto count = static_cast<std::size_t>(batches_.losses().count());
  std::copy_n(outcome.losses.begin() + static_cast<std::ptrdiff_t>(count), signals.size(),
              outcome.signals.begin());
  outcome.losses.resize(count);
  outcome.grad_norm = engine_.gradient_norm();
  return outcome;
}

// An update leaves itself out where the gradient or a loss is not finite.
void TrainingStep::compute(std::int64_t step) {
  const Tensor& losses = batches_.losses();
  backend_.zero(losses);
  model_.train(batches_.all(), batches_.losses_here(), 1.0f / static_cast<float>(options_.tokens));
  if (!tells_loss_) backend_.zero(losses);
  if (options_.before_change && changes_late_) options_.before_change();
  // A sum of one number and zeros is that number, so ranks share what each knows a part of.
  group_.set_purpose(fmt::format("step {}, losses", step + 1));
  group_.all_reduce(options_.with_signals ? batches_.losses_and_signals() : losses).wait();
  const trace::Span span("optimizer", "update");
  engine_.measure_gradient();
  if (options_.updates) engine_.update(losses);
}

}  // namespace shoal
