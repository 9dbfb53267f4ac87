// A scenario, drawn from a seed: a training run, and the attempts at it with their layouts and faults. The
// last attempt is undisturbed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "simulate/faults.h"

namespace shoal::simulate {

using Settings = std::vector<std::string>;  // "section.key=value"

// A layout of the ranks.
struct Layout {
  int ranks;
  Settings settings;
};

// A run whose final bytes are the same in each of its layouts.
struct Training {
  std::string name;
  Settings settings;
  std::vector<Layout> layouts;
};

std::span<const Training> trainings();

struct PlannedAttempt {
  const Layout* layout;
  int ranks_per_host = 1;
  double patience = 0.1;  // as of Attempt
  std::vector<Fault> faults = {};
  bool by_launcher = true;  // started again by `shoal launch`, or by a person with init.from=auto
  bool damage = false;      // a bit of the newest checkpoint is wrong before it
};

struct Scenario {
  const Training* training;
  std::vector<PlannedAttempt> attempts;
  bool memory = false;  // with checkpoints in memory
};

Scenario draw_scenario(std::uint64_t seed);
std::string to_string(const Scenario& scenario);

}  // namespace shoal::simulate
