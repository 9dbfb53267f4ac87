#include "planner/prediction.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "planner/sample_tape.h"
#include "planner/stage_actions.h"

namespace shoal {

namespace {

// Whether a stage between the ends needs no more memory than the one before it, which holds the activations
// of as many micro-batches or more: blocks are alike unless some are frozen or recomputed.
bool needs_no_more_than_before(const RunPlan& plan, int stage) {
  if (!plan.pipeline.recompute_blocks.empty() || !plan.model.frozen.empty()) return false;
  const auto blocks = [&](std::size_t range) { return blocks_of(plan.ranges[range], plan.model).count(); };
  for (auto range = static_cast<std::size_t>(stage); range < plan.ranges.size();
       range += static_cast<std::size_t>(plan.mesh.pipeline)) {
    if (blocks(range) > blocks(range - 1)) return false;
  }
  return true;
}

}  // namespace

// A long pipeline's stages are left out where they need no more than another: the first have the embedding
// and hold most activations, the last has the head.
double memory_of_rank(const RunPlan& plan, const Machine& machine, double enough) {
  const int stages = plan.mesh.pipeline;
  double most = 0;
  for (int stage = 0; stage < stages && most <= enough; ++stage) {
    const bool between = stages > 4 && stage > 1 && stage + 1 < stages;
    if (between && needs_no_more_than_before(plan, stage)) continue;
    most = std::max(most, memory_of_stage(plan, machine, stage));
  }
  return most;
}

namespace {

RankCounts rank_counts(const RunPlan& plan, const Machine& machine) {
  const int ranks = plan.mesh.ranks();
  return {.world_size = ranks,
          .local_size = machine.ranks_per_host() > 0 ? std::min(machine.ranks_per_host(), ranks) : ranks,
          .cores = machine.threads_of(plan)};
}

}  // namespace

double memory_of_host(const RunPlan& plan, const Machine& machine) {
  return host_memory(plan, rank_counts(plan, machine));
}

bool fits_host(const RunPlan& plan, const Machine& machine) {
  return fits_host(plan, rank_counts(plan, machine));
}

// The last tensor rank has the largest shares; in the host's memory the first has more of a checkpoint, the
// parameters that all have.
double memory_of_stage(const RunPlan& plan, const Machine& machine, int stage) {
  const auto memory_of = [&](int tensor) {
    return estimate_memory(plan, rank_counts(plan, machine), {.pipeline = stage, .tensor = tensor});
  };
  const int last = plan.mesh.tensor - 1;
  const double memory = memory_of(last).of_device();
  return last == 0 || plan.backend == BackendKind::cuda ? memory : std::max(memory, memory_of(0).total());
}

const PricedSample& Predictor::sample(const RunPlan& wanted, int world) {
  const auto found = std::ranges::find_if(
      samples_, [&](const auto& known) { return known->world == world && known->plan == wanted; });
  if (found != samples_.end()) return **found;
  auto tape = record_sample(wanted);
  const auto price_call = [&](TapeCall& call) {
    call.call.world = world;
    call.seconds = machine_.seconds(call.call);
    call.delay = machine_.delay(call.call);
  };
  const auto price = [&](std::vector<TapeCall>& calls) { std::ranges::for_each(calls, price_call); };
  for (auto& pass : tape.calls.values) std::ranges::for_each(pass, price);
  price(tape.update_calls);
  if (tape.gather) price_call(*tape.gather);
  auto times = machine_.times(wanted, tape.kernels);
  const auto units = gpt_units(wanted.model, wanted.part({.tensor = sampled_tensor_rank(wanted)}));
  const auto updated_of_unit = updated_elements(wanted, units);
  std::vector<std::int64_t> sizes, updated;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const auto home = static_cast<std::size_t>(units[u].home);
    for (auto* all : {&sizes, &updated}) all->resize(std::max(all->size(), home + 1));
    if (units[u].trained) sizes[home] += units[u].size;
    updated[home] += updated_of_unit[u];
  }
  samples_.push_back(std::make_shared<const PricedSample>(PricedSample{wanted, world, std::move(tape), times,
                                                                       std::move(sizes), std::move(updated),
                                                                       ranks_of_update(wanted, units)}));
  return *samples_.back();
}

// The sample of a plan whose blocks are all kept, where some of the plan's are.
RunPlan Predictor::sample_of_kept(const RunPlan& plan) {
  auto kept = sample_of(plan);
  if (!plan.pipeline.recompute_blocks.empty()) kept.pipeline.recompute = Recompute::none;
  return kept;
}

bool Predictor::ready(const RunPlan& plan) {
  return machine_.has_times(sample_of(plan)) && machine_.has_times(sample_of_kept(plan));
}

// A block is taken for the cheaper of the first and the others.
UnitSeconds Predictor::unit_seconds(const RunPlan& plan) {
  const auto seconds = [](const PricedSample& sample, StepPart part) {
    double sum = sample.times.parts.at(1, part);
    for (const auto& call : sample.tape.calls.at(1, part)) {
      if (!call.queued) sum += call.seconds;
    }
    return sum;
  };
  const auto& known = sample(sample_of(plan), plan.mesh.ranks());
  const auto& kept = sample(sample_of_kept(plan), plan.mesh.ranks());
  const auto forward = [&](const PricedSample& sample) {
    return std::min(seconds(sample, StepPart::first_block_forward), seconds(sample, StepPart::block_forward));
  };
  return {
      .embedding = seconds(known, StepPart::embedding_forward) + seconds(known, StepPart::embedding_backward),
      .block = forward(kept) + std::min(seconds(kept, StepPart::last_block_backward),
                                        seconds(kept, StepPart::block_backward)),
      .head = seconds(known, StepPart::head),
      .recomputed = forward(known) + seconds(known, StepPart::block_backward)};
}

// A step takes at least as long as its busiest stage is busy, which is at least the mean. A middle pass has
// the least to do.
double Predictor::bound(const RunPlan& plan) {
  const auto units = unit_seconds(plan);
  return plan.pipeline.micro_batches * (units.embedding + plan.model.n_layer * units.block + units.head) /
         plan.mesh.pipeline;
}

Prediction predict(const RunPlan& plan, Machine& machine) {
  auto prediction = Predictor(machine)(plan);
  prediction.memory = memory_of_rank(plan, machine);
  return prediction;
}

const Schedule& Predictor::schedule(const RunPlan& plan) {
  const int chunks = std::max<int>(1, static_cast<int>(plan.part({}).chunks.size()));
  const PipelineShape shape{plan.mesh.pipeline, chunks, plan.pipeline.micro_batches};
  if (schedule_.ranks.empty() || schedule_.kind != plan.pipeline.schedule || schedule_.shape != shape)
    schedule_ = make_schedule(plan.pipeline.schedule, shape);
  return schedule_;
}

Prediction Predictor::operator()(const RunPlan& plan) {
  if (plan.on_disk()) fail_user("parallel.offload = \"disk\" has no prediction");
  const auto& known = sample(sample_of(plan), plan.mesh.ranks());
  const auto& kept = sample(sample_of_kept(plan), plan.mesh.ranks());
  const auto& schedule = this->schedule(plan);
  std::vector<std::vector<StepAction>> stages;
  for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
    stages.push_back(actions_of_stage(plan, schedule, known, kept, machine_, stage));
  }
  Prediction prediction;
  prediction.step = simulate_step(stages, {.cores = machine_.shared_cores(),
                                           .threads = machine_.threads_of(plan),
                                           .ranks_of_stage = plan.mesh.ranks() / plan.mesh.pipeline});
  const auto work = [](const std::array<double, kCostTerms>& terms) {
    return terms[static_cast<std::size_t>(CostTerm::forward)] +
           terms[static_cast<std::size_t>(CostTerm::backward)];
  };
  prediction.terms = *std::ranges::max_element(prediction.step.terms, {}, work);
  return prediction;
}

}  // namespace shoal
