// Predicts a step of a plan on a machine: its time, term by term, and its memory.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "config/memory.h"
#include "parallel/pipeline/schedule.h"
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

struct PricedSample;

// Workers that gossip are taken to be equally fast (planner/gossip_simulation.h has the uneven ones). Throws
// UserError for state on disk, which has no prediction.
Prediction predict(const RunPlan& plan, Machine& machine);

// Seconds of a middle micro-batch in the units of a model, forward and backward.
struct UnitSeconds {
  double embedding = 0, block = 0, head = 0;
  double recomputed = 0;  // a block that is recomputed
};

// The same for many plans on one machine, which share most of their samples, without their memory.
class Predictor {
 public:
  explicit Predictor(Machine& machine) : machine_(machine) {}
  Prediction operator()(const RunPlan& plan);
  // Whether the machine has the times that a prediction needs, or the time to measure them.
  bool ready(const RunPlan& plan);
  // Seconds that no step of the plan can be under: the passes of the mean stage, without bubbles, queued
  // collectives, messages and the update.
  double bound(const RunPlan& plan);
  UnitSeconds unit_seconds(const RunPlan& plan);

 private:
  static RunPlan sample_of_kept(const RunPlan& plan);
  const PricedSample& sample(const RunPlan& sample, int world);
  const Schedule& schedule(const RunPlan& plan);

  Machine& machine_;
  Schedule schedule_;  // of the last prediction: all cuts of a layout have the same
  std::vector<std::shared_ptr<const PricedSample>> samples_;
};

// The part of predict() that needs no times: bytes of the rank that needs most. Where that is more than
// `enough`, those of another rank that needs more than `enough` do.
double memory_of_rank(const RunPlan& plan, const Machine& machine,
                      double enough = std::numeric_limits<double>::infinity());
// The same of the ranks of one stage.
double memory_of_stage(const RunPlan& plan, const Machine& machine, int stage);
// Bytes of a host's memory that its ranks need together, and whether this host has as much.
double memory_of_host(const RunPlan& plan, const Machine& machine);
bool fits_host(const RunPlan& plan, const Machine& machine);

}  // namespace shoal
