// shoal schedule: draws a pipeline's schedule in a step, and prints the partition of the model.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

#include "cli/command.h"
#include "cli/sizes.h"
#include "config/layout.h"
#include "config/plan.h"
#include "core/terminal.h"
#include "parallel/pipeline/stages.h"
#include "report/schedule_picture.h"
#include "report/svg.h"

namespace shoal::cli {
namespace {

struct ScheduleOptions : ConfigOptions {
  int micro_batches = 0;  // 0: not given
  bool actions = false;
  std::string svg;
};

// The width of the terminal; elsewhere $COLUMNS, or 110.
int output_width() {
  if (const int width = terminal_columns(STDOUT_FILENO); width > 0) return width;
  const char* columns = std::getenv("COLUMNS");
  const int given = columns ? std::atoi(columns) : 0;
  return given > 0 ? given : 110;
}

// The number of ranks; those of one model where parallel.data = 0.
void resolve_for_one_model(Config& config) {
  auto& parallel = config.parallel;
  if (parallel.data == 0)
    parallel.data = parallel.engine == EngineKind::gossip ? config.gossip.worker_size : 1;
  resolve_layout(config, parallel.data * parallel.tensor * parallel.pipeline);
}

std::string origin_of_micro_batches(const Config& config, const RunPlan& plan,
                                    const ScheduleOptions& options) {
  if (options.micro_batches > 0) return "--micro-batches";
  const auto& shape = plan.mesh;
  return fmt::format("global batch {} / micro-batch {}{}{}", config.train.global_batch,
                     config.train.micro_batch,
                     shape.workers > 1 ? fmt::format(" / {} workers", shape.workers) : "",
                     shape.data > 1 ? fmt::format(" / {} data-parallel ranks", shape.data) : "");
}

// Prints a line per rank: its share of the cost, its peak of activations, and its units by chunk.
void print_stages(const RunPlan& plan, bool by_hand, const Schedule& schedule) {
  const auto& model = plan.model;
  const auto& [stages, chunks, micro_batches] = schedule.shape;
  const auto costs = unit_costs(model);
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  fmt::print("\nrank   cost  activations  units\n");
  double dearest = 0;
  for (int rank = 0; rank < stages; ++rank) {
    double cost = 0;
    std::string units, activations;
    const auto ranges = plan.part({.pipeline = rank}).ranges(model);
    const auto needed = buffers_needed(schedule, rank);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const auto& range = ranges[static_cast<std::size_t>(chunk)];
      cost += std::accumulate(costs.begin() + range.begin, costs.begin() + range.end, 0.0);
      const auto name = chunks > 1 ? fmt::format("{}: ", static_cast<char>('a' + chunk % 26)) : "";
      units += (chunk > 0 ? "; " : "") + name + describe(range, model);
      activations += fmt::format("{}{}", chunk > 0 ? " + " : "", needed[chunk].activations);
    }
    dearest = std::max(dearest, cost);
    fmt::print("{:>4} {:>4.1f} %  {:>11}  {}\n", rank, 100 * cost / total, activations, units);
  }
  fmt::print(
      "\ncost: share of the FLOPs of a micro-batch; the model is cut {}. The most expensive rank has {:.2f} "
      "times the mean.\n",
      by_hand ? "by hand (parallel.stages)" : "so that the most expensive range is as cheap as possible",
      dearest / total * stages);
  fmt::print("activations: the most micro-batches{} whose activations are held at the same time.\n",
             chunks > 1 ? " in one chunk" : "");
}

void print_bubble(const Schedule& schedule) {
  fmt::print("\nbubble: ranks wait {:.1f} % of the step, if all stages cost the same.\n",
             100 * timeline(schedule).bubble);
  fmt::print("theory: {}\n", theory_of_bubble(schedule.shape));
}

void print_actions(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.shape.stages; ++rank) {
    fmt::print("rank {}\n", rank);
    for (const auto& action : schedule.ranks[rank]) fmt::print("  {}\n", describe(action));
  }
}

void print_schedule(const RunPlan& plan, bool by_hand, const Schedule& schedule,
                    const std::string& vocabulary, const std::string& origin) {
  fmt::print("{}\n", describe(plan.model, vocabulary));
  fmt::print("{} ({})\n\n", schedule_title(schedule), origin);
  fmt::print("{}", schedule_text(schedule, output_width(), takes_colors(STDOUT_FILENO)));
  fmt::print("\n|3  forward pass of micro-batch 3, |3== its backward pass{}\n",
             schedule.shape.chunks > 1 ? "; |3b of the rank's second chunk" : "");
  print_stages(plan, by_hand, schedule);
  print_bubble(schedule);
}

void run_schedule(const ScheduleOptions& options) {
  const std::filesystem::path svg = options.svg;
  if (!svg.empty()) require_svg(svg);
  Config config = options.load();
  const auto& parallel = config.parallel;
  resolve_for_one_model(config);
  const auto vocabulary = resolve_vocabulary(config);
  const auto plan = make_plan(config);
  const int micro_batches = options.micro_batches > 0 ? options.micro_batches : plan.pipeline.micro_batches;
  const auto schedule = make_schedule(parallel.schedule, {parallel.pipeline, parallel.chunks, micro_batches});
  if (!svg.empty()) write_svg(svg, schedule_svg(schedule));
  if (options.actions) {
    print_actions(schedule);
  } else {
    print_schedule(plan, !parallel.stages.empty(), schedule, vocabulary,
                   origin_of_micro_batches(config, plan, options));
  }
}

}  // namespace

void add_schedule(CLI::App& app) {
  auto options = std::make_shared<ScheduleOptions>();
  auto* command = add_command(
      app, "schedule", "Draw the schedule of a pipeline in one step, and print the cut of the model",
      {{"shoal schedule configs/gpt2-124m.toml parallel.pipeline=4", "GPT-2 in four stages, 1F1B"},
       {"shoal schedule configs/gpt2-124m.toml parallel.pipeline=4 parallel.schedule=gpipe --micro-batches 8",
        "with eight micro-batches instead of the config's"},
       {"shoal schedule mine.toml parallel.pipeline=2 parallel.schedule=interleaved "
        "parallel.chunks=3 --svg s.svg",
        "three chunks per rank, also as a picture"},
       {"shoal schedule configs/gpt2-124m.toml parallel.pipeline=2 parallel.stages=7,5", "cut by hand"}});
  add_config_options(*command, *options);
  command
      ->add_option("--micro-batches", options->micro_batches,
                   "Micro-batches of a step (default: as the config says)")
      ->check(takes_integer(1, 1 << 16))
      ->option_text("M");
  command->add_option("--svg", options->svg, "Write the picture to this file too")->option_text("FILE.svg");
  command->add_flag("--actions", options->actions,
                    "Print every rank's actions, including transfers, as CHUNK.MICRO-BATCH");
  command->callback([options] { run_schedule(*options); });
}

}  // namespace shoal::cli
