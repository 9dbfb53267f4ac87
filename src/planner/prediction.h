// Predicts a step of a plan on a machine: its time, term by term, and its memory.
#pragma once

#include <memory>
#include <vector>

#include "config/memory.h"
#include "planner/machine.h"
#include "planner/step_simulation.h"

namespace shoal {

struct Prediction {
  SimulatedStep step;
  double seconds() const { return step.seconds; }
  // The terms of the stage that computes most; they add up to seconds().
  std::array<double, kCostTerms> terms{};
  double memory = 0;  // bytes of the rank that needs most, on its device or its share of the host
};

// For synchronous plans. Throws UserError for plans with gossip or offload, which are not simulated.
Prediction predict(const RunPlan& plan, Machine& machine);

// The same for many plans on one machine, which share most of their samples, without their memory.
class Predictor {
 public:
  explicit Predictor(Machine& machine) : machine_(machine) {}
  Prediction operator()(const RunPlan& plan);
  // Whether the machine has the times that a prediction needs, or the time to measure them.
  bool ready(const RunPlan& plan) { return machine_.has_times(sample_of(plan)); }
  // Seconds that no step of the plan can be under: the passes of the mean stage, without bubbles, queued
  // collectives, messages and the update.
  double bound(const RunPlan& plan);
  // Seconds of a middle micro-batch in each unit, forward and backward, the embedding first and the head
  // last.
  std::vector<double> unit_seconds(const RunPlan& plan);

 private:
  struct Sample;
  const Sample& sample(const RunPlan& plan);

  Machine& machine_;
  std::vector<std::shared_ptr<const Sample>> samples_;
};

// The part of predict() that needs no times: bytes of the rank that needs most.
double memory_of_rank(const RunPlan& plan, const Machine& machine);

}  // namespace shoal
