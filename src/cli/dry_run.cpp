#include "cli/dry_run.h"

#include <fmt/format.h>

#include <set>

#include "cli/sizes.h"
#include "config/follow.h"
#include "config/layout.h"
#include "core/text.h"
#include "launch/ranks.h"
#include "planner/dry_run.h"

namespace shoal::cli {
namespace {

// "0..3, 5": a set of values of a coordinate in the mesh, as ranges.
std::string values_text(const std::set<int>& values) {
  std::vector<std::string> runs;
  for (auto first = values.begin(); first != values.end();) {
    auto last = first;
    while (std::next(last) != values.end() && *std::next(last) == *last + 1) ++last;
    runs.push_back(first == last ? fmt::format("{}", *first) : fmt::format("{}..{}", *first, *last));
    first = std::next(last);
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

// "pipeline 0, tensor 0..1": the coordinates of `ranks`, where they are a box of the mesh; else "".
std::string coordinates_text(const std::vector<int>& ranks, const MeshShape& shape) {
  struct Axis {
    const char* name;
    int MeshCoordinate::*value;
    int size;
  };
  const Axis axes[] = {{"worker", &MeshCoordinate::worker, shape.workers},
                       {"pipeline", &MeshCoordinate::pipeline, shape.pipeline},
                       {"data", &MeshCoordinate::data, shape.data},
                       {"tensor", &MeshCoordinate::tensor, shape.tensor}};
  std::vector<std::string> texts;
  std::size_t box = 1;
  for (const auto& axis : axes) {
    std::set<int> values;
    for (const int rank : ranks) values.insert(coordinate_of(shape, rank).*axis.value);
    box *= values.size();
    if (values.size() < static_cast<std::size_t>(axis.size)) {
      texts.push_back(fmt::format("{} {}", axis.name, values_text(values)));
    }
  }
  return box == ranks.size() ? fmt::format("{}", fmt::join(texts, ", ")) : "";
}

// Receivers of the same number of bytes share a line.
void print_links(const DryRun::Rank& rank, int steps, const MeshShape& shape) {
  std::map<std::int64_t, std::vector<int>, std::greater<>> by_bytes;
  for (const auto& [to, bytes] : rank.links) by_bytes[bytes].push_back(to);
  for (const auto& [bytes, to] : by_bytes) {
    const auto name = to.size() == 1 ? fmt::format("rank {} to {}", rank.ranks.front(), to.front())
                                     : fmt::format("rank {} to {} ranks", rank.ranks.front(), to.size());
    const auto place = shape.workers > 1 ? coordinates_text(to, shape) : "";
    print_line(name, format_bytes(static_cast<double>(bytes) / steps),
               to.size() == 1 ? place : fmt::format("to each{}", place.empty() ? "" : ", " + place));
  }
}

// A description of the ranks: ", each of 8 ranks", ", rank 0 and 3 others (pipeline 0)".
std::string who_text(const std::vector<int>& ranks, const MeshShape& shape) {
  const auto all = static_cast<std::size_t>(shape.ranks()), others = ranks.size() - 1;
  if (ranks.size() == all) return all == 1 ? "" : fmt::format(", each of {} ranks", all);
  const auto coordinates = coordinates_text(ranks, shape);
  return fmt::format(", rank {}{}{}", ranks.front(),
                     others == 0   ? ""
                     : others == 1 ? fmt::format(" and rank {}", ranks.back())
                                   : fmt::format(" and {} others", others),
                     coordinates.empty() ? "" : fmt::format(" ({})", coordinates));
}

// Prints a step of one rank. Traffic is the mean over the steps.
void print_step(const DryRun::Rank& rank, int steps, const RunPlan& plan) {
  const auto& shape = plan.mesh;
  fmt::print("\none step{}: {} micro-batch{} of {} x {} tokens\n", who_text(rank.ranks, shape), rank.passes,
             rank.passes == 1 ? "" : "es", plan.pipeline.batch.batch, plan.model.block_size);
  const auto per_step = [&](std::int64_t bytes) { return format_bytes(static_cast<double>(bytes) / steps); };
  for (const auto& total : rank.traffic) {
    if (total.bytes == 0) continue;
    const bool even = total.calls % steps == 0;
    print_line(total.subject, per_step(total.bytes),
               fmt::format("sent in {} x {}{}", even ? total.calls / steps : total.calls, total.collective,
                           even ? "" : fmt::format(" in {} steps", steps)));
  }
  std::string of_steps;
  if (steps > 1) {
    of_steps = plan.engine.outer ? fmt::format("the mean over {} steps", steps)
                                 : fmt::format("the mean over {} rounds of {}", steps, plan.topology()->name);
  }
  print_line("sent in total", per_step(rank.bytes), of_steps);
  print_links(rank, steps, shape);
  print_line("compute", flops_text(rank.flops), "matrix products and attention");
}

}  // namespace

void print_dry_run(Config config, int asked, int ranks_per_host) {
  const auto launch = launcher_of(asked);
  if (launch.rank != 0) return;  // under mpirun, one process prints
  const int ranks = ranks_to_start(config, asked, launch);
  resolve_layout(config, ranks, ranks_per_host);
  log_followed(config);
  note_automatic_plan(config);
  const auto source = resolve_vocabulary(config);
  const auto plan = make_plan(config);
  fmt::print("{}: {} parameters\n", describe(plan.model, source),
             with_commas(parameter_count(gpt_units(plan.model))));
  print_memory(plan, config.data, {.world_size = ranks, .local_size = std::max(ranks_per_host, 1)});
  const auto run = dry_run(plan, ranks_per_host);
  for (const auto& rank : run.ranks) print_step(rank, run.steps, plan);
  if (ranks_per_host > 0) {
    print_line("leaving a host", format_bytes(static_cast<double>(run.host_bytes) / run.steps),
               fmt::format("at most, {} ranks on each", ranks_per_host));
  }
}

}  // namespace shoal::cli
