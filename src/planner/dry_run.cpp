#include "planner/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "ops/dry/dry_backend.h"
#include "parallel/data/data_engine.h"
#include "train/training_step.h"
#include "train/worker_sums.h"

namespace shoal {
namespace {

// The objects that a rank of the trainer has for its steps.
class DryRank {
 public:
  DryRank(const RunPlan& plan, int rank)
      : plan_(plan),
        recording_(plan.mesh.ranks(), rank),
        mesh_(recording_.ranks(), plan.mesh),
        engine_(std::make_unique<DataEngine>(backend_, mesh_, plan.model, engine())),
        model_(backend_, *engine_, mesh_, plan.model, plan.pipeline_options(mesh_.coordinate())),
        step_(backend_, *engine_, model_, mesh_, several_workers() ? mesh_.worker() : recording_.ranks(),
              {.with_signals = !several_workers()}) {
    engine_->initialize(0);
    if (several_workers()) worker_sums_.emplace(recording_.ranks(), *plan.topology(), plan.steps_of_round());
  }

  // The traffic of a step depends on the state that the step before has left, so the first step is not
  // recorded.
  DryRun::Rank steps(int count) {
    step(0);
    recording_.clear();
    const double before = backend_.flops();
    for (int i = 1; i <= count; ++i) step(i);
    return {.ranks = {recording_.ranks().rank()},
            .passes = engine_->passes(),
            .flops = (backend_.flops() - before) / count,
            .allocated = backend_.most_allocated(),
            .traffic = recording_.totals(),
            .links = recording_.links(),
            .bytes = recording_.bytes()};
  }

 private:
  // Offload does not change the traffic, and on disk it would need a file.
  EngineOptions engine() const {
    auto options = plan_.engine_options(mesh_.coordinate());
    options.offload.clear();
    options.on_host = false;
    return options;
  }

  bool several_workers() const { return mesh_.shape().workers > 1; }

  void step(std::int64_t step) {
    step_.ask(step, {1e-3, step + 1});
    if (!worker_sums_) return;
    worker_sums_->post({});
    worker_sums_->next(false);
  }

  const RunPlan& plan_;
  DryBackend backend_;
  Recording recording_;
  Mesh mesh_;
  std::unique_ptr<DataEngine> engine_;
  Pipeline model_;
  TrainingStep step_;
  std::optional<WorkerSums> worker_sums_;
};

bool alike(const DryRun::Rank& a, const DryRun::Rank& b) {
  const auto same = [](const Recording::Total& x, const Recording::Total& y) {
    return x.collective == y.collective && x.subject == y.subject && x.calls == y.calls && x.bytes == y.bytes;
  };
  return a.passes == b.passes && a.flops == b.flops && a.allocated == b.allocated && a.bytes == b.bytes &&
         std::equal(a.traffic.begin(), a.traffic.end(), b.traffic.begin(), b.traffic.end(), same);
}

}  // namespace

DryRun dry_run(const RunPlan& plan, int ranks_per_host) {
  DryRun result;
  if (plan.mesh.workers > 1) {
    result.steps = plan.topology()->period() * static_cast<int>(plan.steps_of_round());
  }
  std::map<int, std::int64_t> leaving;  // by host
  for (int rank = 0; rank < plan.mesh.ranks(); ++rank) {
    auto one = DryRank(plan, rank).steps(result.steps);
    for (const auto& [to, bytes] : one.links) {
      if (ranks_per_host > 0 && to / ranks_per_host != rank / ranks_per_host) {
        leaving[rank / ranks_per_host] += bytes;
      }
    }
    const auto like = std::find_if(result.ranks.begin(), result.ranks.end(),
                                   [&](const DryRun::Rank& other) { return alike(one, other); });
    if (like != result.ranks.end()) {
      like->ranks.push_back(rank);
    } else {
      result.ranks.push_back(std::move(one));
    }
  }
  for (const auto& [host, bytes] : leaving) result.host_bytes = std::max(result.host_bytes, bytes);
  return result;
}

}  // namespace shoal
