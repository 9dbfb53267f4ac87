// shoal plan: ranks the layouts of a config by the predicted time of a step.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "cli/command.h"
#include "cli/plan_table.h"
#include "cli/planning.h"
#include "cli/sizes.h"
#include "config/memory.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "report/metrics.h"
#include "report/svg.h"

namespace shoal::cli {
namespace {

struct PlanOptions : ConfigOptions {
  int ranks = 0;
  std::string cluster, table, check, svg;
  bool json = false;
  int show = 10;
};

double term(const Prediction& p, CostTerm which) { return p.terms[static_cast<std::size_t>(which)]; }

std::string in_milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return ms >= 1000  ? fmt::format("{:.0f}", ms)
         : ms >= 100 ? fmt::format("{:.1f}", ms)
                     : fmt::format("{:.2f}", ms);
}

// The terms that take time in one of the plans at least are columns.
void print_plans(std::span<const RankedPlan> plans) {
  std::vector<CostTerm> columns;
  for (int i = 0; i < kCostTerms; ++i) {
    const auto which = static_cast<CostTerm>(i);
    const auto takes_time = [&](const RankedPlan& p) {
      return term(p.prediction, which) > 0.01 * p.prediction.seconds();
    };
    if (std::ranges::any_of(plans, takes_time)) columns.push_back(which);
  }
  const bool tried = std::ranges::any_of(plans, [](const RankedPlan& p) { return p.tried.count > 0; });
  fmt::print("\n{:>4} {:>9}{} {:>9}", "", "step ms", tried ? "  tried ms" : "", "memory");
  for (const auto which : columns) fmt::print(" {:>10}", name_of(which));
  fmt::print("  layout\n");
  int rank = 0;
  for (const auto& p : plans) {
    fmt::print("{:>4} {:>9}", ++rank, in_milliseconds(p.prediction.seconds()));
    if (tried) fmt::print(" {:>9}", p.tried.count > 0 ? in_milliseconds(p.tried.seconds) : "");
    fmt::print(" {:>9}", format_bytes(p.prediction.memory));
    for (const auto which : columns) fmt::print(" {:>10}", in_milliseconds(term(p.prediction, which)));
    fmt::print("  {}\n", layout_arguments(p.config));
  }
}

nlohmann::ordered_json to_json(const RankedPlan& p, const Machine& machine) {
  nlohmann::ordered_json json;
  json["layout"] = layout_arguments(p.config);
  json["step_seconds"] = p.prediction.seconds();
  if (p.tried.count > 0) json["tried_seconds"] = p.tried.seconds;
  json["memory_bytes"] = p.prediction.memory;
  json["host_memory_bytes"] = memory_of_host(p.plan, machine);
  for (int i = 0; i < kCostTerms; ++i) {
    json["terms"][std::string(name_of(static_cast<CostTerm>(i)))] =
        p.prediction.terms[static_cast<std::size_t>(i)];
  }
  return json;
}

// Prints the most memory that the steps of a run had, beside the prediction.
void check_memory_of(const Metrics& metrics, const Config& config, const RunPlan& plan) {
  const auto ranks = RankCounts::as_threads(plan.mesh.ranks());
  const double predicted = host_memory(plan, ranks) / ranks.world_size;
  const auto before_end = [&](std::int64_t interval) {
    return interval > 0 && interval < metrics.steps.back().step;
  };
  double most = 0;
  for (const auto& step : metrics.steps) most = std::max(most, step.memory_per_rank);
  if (most > 0) print_line("memory", format_bytes(most), "per rank, the most in these steps");
  const bool saved =
      before_end(config.checkpoint.interval) || (config.checkpoint.best && before_end(config.eval.interval));
  print_line("  predicted", format_bytes(predicted),
             most > 0 && saved ? fmt::format("{:+.1f} %", 100 * (predicted / most - 1))
                               : fmt::format("per rank, {} of it to save the last step",
                                             format_bytes(estimate_memory(plan, ranks).checkpoint)));
}

// Prints the steps of a run beside the prediction of its layout.
void check_run(const std::string& folder) {
  const std::filesystem::path run = folder;
  auto config = load_config(run / "plan.toml");
  resolve_vocabulary(config);
  const auto metrics = read_metrics(run / "metrics.jsonl");
  std::vector<double> seen;
  for (const auto& step : metrics.steps) {
    if (step.ms_per_step > 0) seen.push_back(1e-3 * step.ms_per_step);
  }
  if (seen.size() > 1) seen.erase(seen.begin());  // has the first step, which allocates
  if (seen.empty()) fail_user("{} has no steps with times in metrics.jsonl", folder);
  std::ranges::sort(seen);
  const double measured = seen[seen.size() / 2];
  const auto plan = make_plan(config);
  const int ranks = plan.mesh.ranks();
  const auto machine = measured_machine(config, {.ranks = ranks});
  const auto predicted = predict(plan, *machine);
  fmt::print("{}: {} rank{}, {}\n\n", folder, ranks, ranks == 1 ? "" : "s", layout_arguments(config));
  print_line("measured", in_milliseconds(measured) + " ms",
             fmt::format("the median of {} logged times{}", seen.size(),
                         config.init.resumes() ? ", also of starts before the last" : ""));
  print_line("predicted", in_milliseconds(predicted.seconds()) + " ms",
             fmt::format("{:+.1f} %", 100 * (predicted.seconds() / measured - 1)));
  for (int i = 0; i < kCostTerms; ++i) {
    const double seconds = predicted.terms[static_cast<std::size_t>(i)];
    if (seconds > 0)
      print_line("  " + std::string(name_of(static_cast<CostTerm>(i))), in_milliseconds(seconds) + " ms");
  }
  check_memory_of(metrics, config, plan);
}

// The layouts to print.
std::span<const RankedPlan> shown(const PlanOptions& options, const SearchResult& result) {
  return std::span(result.plans).first(std::min(result.plans.size(), static_cast<std::size_t>(options.show)));
}

void print_json(const PlanOptions& options, const SearchResult& result, const Machine& machine, int ranks) {
  nlohmann::ordered_json json;
  json["machine"] = machine.name();
  json["ranks"] = ranks;
  json["considered"] = result.considered;
  json["too_large"] = result.too_large;
  json["plans"] = nlohmann::ordered_json::array();
  for (const auto& p : shown(options, result)) json["plans"].push_back(to_json(p, machine));
  fmt::print("{}\n", json.dump(2));
}

// Arguments of a run in the layout: the user's own, then those that the layout sets.
std::string run_arguments(const PlanOptions& options, const Config& config, const Config& best) {
  std::istringstream layout(layout_arguments(best));
  std::vector<std::string> chosen(std::istream_iterator<std::string>(layout), {});
  if (!options.cluster.empty()) chosen.insert(chosen.begin(), "train.backend=cuda");
  if (config.parallel.plan == PlanKind::automatic) chosen.insert(chosen.begin(), "parallel.plan=manual");
  std::string arguments;
  for (const auto& setting : options.settings) {
    const auto key = setting.substr(0, setting.find('=') + 1);
    const auto is_chosen = [&](const std::string& word) { return word.starts_with(key); };
    if (std::ranges::none_of(chosen, is_chosen)) arguments += shell_word(setting) + " ";
  }
  return fmt::format("{}{}", arguments, fmt::join(chosen, " "));
}

void print_result(const PlanOptions& options, const SearchResult& result, const Machine& machine,
                  const Job& job, const Config& config, const std::string& vocabulary_source) {
  const int ranks = job.ranks;
  fmt::print("{}\n", cli::describe(result.plans.front().plan.model, vocabulary_source));
  fmt::print("{} rank{} on {}: {} layouts, {} too large for {} per rank{}\n", ranks, ranks == 1 ? "" : "s",
             machine.name(), result.considered, result.too_large, format_bytes(result.limit),
             result.unmeasured > 0
                 ? fmt::format(", {} not measured in a minute (the same command goes on)", result.unmeasured)
                 : "");
  print_plans(shown(options, result));
  const auto& best = result.plans.front().config;
  fmt::print("\nbest: {}\n", layout_arguments(best));
  for (const auto& reason : reasons_for_best(result)) fmt::print("  {}\n", reason);
  const auto file = shell_word(options.file), arguments = run_arguments(options, config, best);
  const bool hosts = !options.cluster.empty() && ranks > machine.ranks_per_host();
  if (job.world || hosts) {
    fmt::print("mpirun -n {} shoal train {} {}\n", ranks, file, arguments);
  } else {
    fmt::print("shoal train {} --ranks {} {}\n", file, ranks, arguments);
  }
}

void plan(const PlanOptions& options, Config config, const Job& job) {
  const auto source = resolve_vocabulary(config);
  const std::unique_ptr<Machine> machine = options.cluster.empty()
                                               ? measured_machine(config, job, options.json)
                                               : described_machine(options.cluster, config);
  const auto result = search_plans(config, job.ranks, *machine);
  if (!options.json || !options.svg.empty()) require_plan(result, job.ranks);
  if (log::thread_muted()) return;
  if (options.json) {
    print_json(options, result, *machine, job.ranks);
  } else {
    print_result(options, result, *machine, job, config, source);
  }
  if (options.svg.empty()) return;
  const auto picture = timeline_svg(result.plans.front());
  options.json ? replace_text(options.svg, picture) : write_svg(options.svg, picture);
}

void run_plan(const PlanOptions& options) {
  if (!options.svg.empty()) require_svg(options.svg);
  with_job(
      options.ranks, [&] { return options.load(); },
      [&](const Config& config, const Job& job) { plan(options, config, job); });
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  auto* command = add_command(
      app, "plan", "Rank the layouts of a config by the predicted time of a step",
      {{"shoal plan configs/gpt2-124m.toml --ranks 4", "on this machine, which is measured where needed"},
       {"shoal plan configs/gpt2-124m.toml --ranks 64 --cluster configs/clusters/a100.toml",
        "on machines that are only described"},
       {"shoal plan configs/gpt2-124m.toml --ranks 4 --svg step.svg", "and draw the fastest one's step"},
       {"shoal plan configs/gpt2-124m.toml --ranks 4 parallel.tensor=2", "with a part of the layout given"},
       {"shoal plan --check runs/quickstart", "a run's measured steps beside the prediction"},
       {"shoal plan --table steps.csv --cluster configs/clusters/a100.toml",
        "beside steps that others measured: errors and regret"}});
  auto* config =
      command->add_option("config", options->file, "The config of the run")->option_text("[CONFIG.toml]");
  add_settings(*command, options->settings);
  auto* ranks = add_ranks(*command, options->ranks);
  auto* cluster =
      command->add_option("--cluster", options->cluster, "Plan for the cluster that this file describes")
          ->option_text("FILE.toml");
  auto* show = command->add_option("--show", options->show, "Number of layouts to print")
                   ->check(takes_integer(1))
                   ->option_text("N")
                   ->default_str("10");
  command
      ->add_option("--table", options->table,
                   "Predict the measured steps of this table instead (columns: docs/planner.md)")
      ->option_text("FILE.csv")
      ->needs(cluster)
      ->excludes(config, ranks, show);
  auto* check = command->add_option("--check", options->check,
                                    "Print a run's measured steps beside the prediction instead");
  check->option_text("RUN")->excludes(config, cluster, ranks, show);
  command->add_flag("--json", options->json, "Print JSON")->excludes(check);
  command->add_option("--svg", options->svg, "Draw the fastest layout's predicted step into this file")
      ->option_text("FILE.svg")
      ->needs(config);
  command->callback([options] {
    if (!options->table.empty()) return print_table_of_steps(options->table, options->cluster, options->json);
    if (!options->check.empty()) return check_run(options->check);
    if (options->file.empty()) fail_user("plan needs a config: shoal plan CONFIG.toml --ranks N");
    run_plan(*options);
  });
}

}  // namespace shoal::cli
