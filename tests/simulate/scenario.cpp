#include "simulate/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace shoal::simulate {
namespace {

const std::vector<Layout> kLayouts = {
    {1, {}},
    {2, {}},
    {2, {"parallel.zero=1"}},
    {2, {"parallel.zero=2"}},
    {2, {"parallel.zero=3"}},
    {2, {"parallel.pipeline=2"}},
    {2, {"parallel.pipeline=2", "parallel.schedule=gpipe"}},
    {2, {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2"}},
    {3, {"parallel.zero=2"}},
    {4, {"parallel.zero=3"}},
    {4, {"parallel.zero=3", "parallel.replicate=2"}},
    {4, {"parallel.pipeline=2", "parallel.zero=1"}},
    {4, {"parallel.pipeline=4"}},
};

// A worker's state is its own, so the number of workers stays. Their models have two blocks, not four, which
// only stages need.
const std::vector<Layout> kWorkers = {{4, {}}};

const std::vector<Training> kTrainings = {
    {"float32", {"run.deterministic=layout"}, kLayouts},
    {"bfloat16", {"run.deterministic=layout", "train.dtype=bfloat16", "model.dropout=0.1"}, kLayouts},
    {"untied",
     {"run.deterministic=layout", "model.tie_embeddings=false", "optim.name=accum_adamw",
      "optim.accum_steps=2"},
     kLayouts},
    {"muon", {"run.deterministic=layout", "optim.name=muon", "optim.ema=0.5", "outer.interval=2"}, kLayouts},
    {"gossip", {"parallel.engine=gossip", "gossip.topology=exp", "model.n_layer=2"}, kWorkers},
    {"outer",
     {"parallel.engine=gossip", "gossip.topology=complete", "outer.interval=2", "outer.compress=topk:0.1",
      "model.n_layer=2"},
     kWorkers},
    {"streaming",
     {"parallel.engine=gossip", "gossip.topology=complete", "outer.interval=4", "outer.fragments=2",
      "outer.overlap=2", "outer.compress=int4", "optim.ema=0.5", "model.n_layer=2"},
     kWorkers},
};

// Draws the moment of a fault: anywhere in an attempt of a few thousand messages, some hundreds of changes of
// files and some tens of renames, more often in its beginning.
std::int64_t draw_event(Random& random, Fault::At at) {
  constexpr double kMost[] = {6000, 400, 60};
  const double most = kMost[static_cast<std::size_t>(at)];
  return static_cast<std::int64_t>(std::pow(most, random.share()) * (0.5 + random.share()));
}

Fault draw_fault(Random& random) {
  constexpr Fault::Kind kKinds[] = {
      Fault::Kind::kill_rank,   Fault::Kind::kill_rank,    Fault::Kind::kill_host,
      Fault::Kind::freeze,      Fault::Kind::late_message, Fault::Kind::full_disk,
      Fault::Kind::stop_signal, Fault::Kind::power_cut,    Fault::Kind::power_cut};
  Fault fault{.kind = random.pick(kKinds), .at = Fault::At::message, .event = 0};
  const bool at_file =
      fault.kind == Fault::Kind::full_disk || (fault.kind != Fault::Kind::late_message && random.chance(0.5));
  if (at_file) fault.at = Fault::At::file;
  fault.event = draw_event(random, fault.at);
  const bool lasts = fault.kind == Fault::Kind::freeze || fault.kind == Fault::Kind::late_message ||
                     fault.kind == Fault::Kind::full_disk;
  if (lasts) fault.seconds = 0.1 + 2.5 * random.share();
  return fault;
}

}  // namespace

std::span<const Training> trainings() { return kTrainings; }

Scenario draw_scenario(std::uint64_t seed) {
  Random random(seed);
  Scenario scenario{.training = &random.pick(kTrainings), .attempts = {}};
  const auto disturbed = 1 + random.below(3);
  for (std::int64_t i = 0; i <= disturbed; ++i) {
    PlannedAttempt attempt{.layout = &random.pick(scenario.training->layouts)};
    attempt.ranks_per_host = 1 + static_cast<int>(random.below(2));
    attempt.by_launcher = random.chance(0.5);
    if (i < disturbed) {
      attempt.patience = random.chance(0.2) ? -1 : 0.5 * random.share();
      attempt.faults.push_back(draw_fault(random));
      if (random.chance(0.2)) attempt.faults.push_back(draw_fault(random));
    }
    attempt.damage = i > 0 && random.chance(0.1);
    scenario.attempts.push_back(std::move(attempt));
  }
  // From numbers of their own, so that the rest of a seed's scenario is what it was before.
  scenario.memory = Random(seed ^ 0x6d656d6f7279).chance(0.4);
  Random renames(seed ^ 0x72656e616d65);
  for (auto& attempt : scenario.attempts) {
    for (auto& fault : attempt.faults) {
      if (fault.at != Fault::At::file || !renames.chance(0.4)) continue;
      fault.at = Fault::At::rename;  // what makes a checkpoint whole
      fault.event = draw_event(renames, fault.at);
    }
  }
  return scenario;
}

std::string to_string(const Scenario& scenario) {
  std::string text = fmt::format("{} in {} attempts{}", scenario.training->name, scenario.attempts.size(),
                                 scenario.memory ? ", with checkpoints in memory" : "");
  for (const auto& attempt : scenario.attempts) {
    std::vector<std::string> faults;
    for (const auto& fault : attempt.faults) faults.push_back(to_string(fault));
    text += fmt::format(
        "\n  {} ranks {}{}{}: {}", attempt.layout->ranks, fmt::join(attempt.layout->settings, " "),
        attempt.by_launcher ? "" : ", init.from=auto", attempt.damage ? ", a damaged checkpoint" : "",
        faults.empty() ? "undisturbed" : fmt::format("{}", fmt::join(faults, "; ")));
  }
  return text;
}

}  // namespace shoal::simulate
