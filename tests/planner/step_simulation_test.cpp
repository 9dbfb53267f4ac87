// Simulated steps against closed forms.
#include "planner/step_simulation.h"

#include <gtest/gtest.h>

#include "parallel/pipeline/schedule.h"

namespace shoal {
namespace {

using Kind = StepAction::Kind;

StepAction compute(double seconds, CostTerm term = CostTerm::forward) {
  return {.term = term, .seconds = seconds, .uses_core = true};
}

double term(const SimulatedStep& step, std::size_t stage, CostTerm which) {
  return step.terms[stage][static_cast<std::size_t>(which)];
}

// The passes of a schedule with messages that take no time.
std::vector<std::vector<StepAction>> actions_of(const Schedule& schedule, double forward, double backward) {
  std::vector<std::vector<StepAction>> stages;
  const int last = schedule.shape.stages - 1;
  for (int s = 0; s <= last; ++s) {
    auto& actions = stages.emplace_back();
    for (const auto& action : schedule.ranks[static_cast<std::size_t>(s)]) {
      using Is = Action::Kind;
      const bool is_forward = action.kind == Is::forward;
      if (is_forward || action.kind == Is::backward) {
        if (is_forward ? s > 0 : s < last) {
          actions.push_back({.kind = Kind::receive,
                             .term = CostTerm::stages,
                             .peer = is_forward ? s - 1 : s + 1,
                             .channel = is_forward ? 0 : 1});
        }
        actions.push_back(
            compute(is_forward ? forward : backward, is_forward ? CostTerm::forward : CostTerm::backward));
      }
      if (action.kind == Is::send_output)
        actions.push_back({.kind = Kind::send, .peer = s + 1, .channel = 0});
      if (action.kind == Is::send_gradient)
        actions.push_back({.kind = Kind::send, .peer = s - 1, .channel = 1});
    }
  }
  return stages;
}

// m micro-batches through p equal stages take (m + p - 1) passes forward and backward.
TEST(SimulatedStep, HasTheBubbleOfOneFOneB) {
  for (const int stages : {1, 2, 4}) {
    for (const int micro_batches : {4, 9}) {
      const auto schedule = make_schedule(ScheduleKind::one_f_one_b, {stages, 1, micro_batches});
      const auto step = simulate_step(actions_of(schedule, 1, 2), {});
      EXPECT_DOUBLE_EQ(step.seconds, 3.0 * (micro_batches + stages - 1)) << stages << " x " << micro_batches;
      EXPECT_DOUBLE_EQ(term(step, 0, CostTerm::stages), 3.0 * (stages - 1));
    }
  }
}

TEST(SimulatedStep, TermsOfAStageAddUpToTheStep) {
  const auto schedule = make_schedule(ScheduleKind::gpipe, {3, 1, 5});
  const auto step = simulate_step(actions_of(schedule, 0.7, 1.9), {});
  for (const auto& terms : step.terms) {
    double sum = 0;
    for (const double seconds : terms) sum += seconds;
    EXPECT_NEAR(sum, step.seconds, 1e-12);
  }
}

// A queued collective of 5 s behind 3 s of work leaves 2 s to wait for.
TEST(SimulatedStep, QueuedCollectivesOverlapWithComputing) {
  const std::vector<std::vector<StepAction>> stages = {{compute(1),
                                                        {.kind = Kind::start, .seconds = 5},
                                                        compute(3),
                                                        {.kind = Kind::join, .term = CostTerm::gradients},
                                                        compute(1)}};
  const auto step = simulate_step(stages, {});
  EXPECT_DOUBLE_EQ(step.seconds, 7);
  EXPECT_DOUBLE_EQ(term(step, 0, CostTerm::gradients), 2);
}

// The gather of a unit ends after 2 s, the reduction behind it after 5 s more.
TEST(SimulatedStep, AUnitWaitsForItsOwnParametersAlone) {
  const std::vector<std::vector<StepAction>> stages = {
      {{.kind = Kind::start, .seconds = 2, .unit = 7},
       {.kind = Kind::start, .seconds = 5},
       {.kind = Kind::join, .term = CostTerm::parameters, .unit = 7},
       compute(1),
       {.kind = Kind::join, .term = CostTerm::gradients}}};
  const auto step = simulate_step(stages, {});
  EXPECT_DOUBLE_EQ(term(step, 0, CostTerm::parameters), 2);
  EXPECT_DOUBLE_EQ(term(step, 0, CostTerm::gradients), 4);
  EXPECT_DOUBLE_EQ(step.seconds, 7);
}

// Two collectives of 2 s keep their link busy one after the other, and end 5 s after that, together.
TEST(SimulatedStep, DelaysOfQueuedCollectivesOverlap) {
  const StepAction queued{.kind = Kind::start, .seconds = 2, .delay = 5};
  const std::vector<std::vector<StepAction>> stages = {
      {queued, queued, {.kind = Kind::join, .term = CostTerm::gradients}}};
  EXPECT_DOUBLE_EQ(simulate_step(stages, {}).seconds, 9);
}

// Two stages of one core: while both compute, each has half of it.
TEST(SimulatedStep, StagesShareCoresWhileBothCompute) {
  const std::vector<std::vector<StepAction>> stages = {{compute(2)}, {compute(6)}};
  EXPECT_DOUBLE_EQ(simulate_step(stages, {.cores = 1}).seconds, 8);
  EXPECT_DOUBLE_EQ(simulate_step(stages, {.cores = 2}).seconds, 6);
  EXPECT_DOUBLE_EQ(simulate_step(stages, {.cores = 2, .ranks_of_stage = 2}).seconds, 8);
}

TEST(SimulatedStep, AMessageArrivesAfterItsTime) {
  const std::vector<std::vector<StepAction>> stages = {
      {compute(1), {.kind = Kind::send, .seconds = 2, .peer = 1}},
      {{.kind = Kind::receive, .term = CostTerm::stages, .peer = 0}, compute(1)}};
  const auto step = simulate_step(stages, {});
  EXPECT_DOUBLE_EQ(step.seconds, 4);
  EXPECT_DOUBLE_EQ(term(step, 1, CostTerm::stages), 3);
}

// The second message waits for the first, but not for its delay.
TEST(SimulatedStep, MessagesShareTheirLink) {
  const StepAction send{.kind = Kind::send, .seconds = 2, .delay = 1, .peer = 1};
  const StepAction receive{.kind = Kind::receive, .term = CostTerm::stages, .peer = 0};
  EXPECT_DOUBLE_EQ(simulate_step({{send, send}, {receive, receive}}, {}).seconds, 5);
}

TEST(SimulatedStep, RefusesStagesThatWaitForEver) {
  const std::vector<std::vector<StepAction>> stages = {{{.kind = Kind::receive, .peer = 0}}};
  EXPECT_THROW(simulate_step(stages, {}), std::exception);
}

}  // namespace
}  // namespace shoal
