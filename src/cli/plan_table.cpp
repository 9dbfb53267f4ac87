#include "cli/plan_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "planner/measured_steps.h"

namespace shoal::cli {
namespace {

std::string layout_of(const MeasuredStep& s) {
  return fmt::format("{} tensor x {} data x {} stages, micro-batch {}", s.tensor, s.data, s.pipeline,
                     s.micro_batch);
}

}  // namespace

void print_table_of_steps(const std::string& table, const std::string& cluster, bool json) {
  const auto result = compare_steps(read_measured_steps(table), read_cluster(cluster));
  if (json) {
    nlohmann::ordered_json out;
    out["rows"] = result.steps.size();
    out["workloads"] = result.workloads.size();
    out["median_error"] = result.median_error;
    out["p90_error"] = result.p90_error;
    out["mean_regret"] = result.mean_regret;
    out["worst_regret"] = result.worst_regret;
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("{:>5} {:>6} {:>6} {:>7} {:>8}  {}\n", "gpus", "batch", "width", "layers", "regret",
             "chosen layout (best, where another)");
  for (const auto& w : result.workloads) {
    const auto& s = w.chosen;
    fmt::print("{:>5} {:>6} {:>6} {:>7} {:>6.1f} %  {}{}\n", s.gpus, s.global_batch, s.n_embd, s.n_layer,
               100 * w.regret, layout_of(s), w.regret > 0 ? " (" + layout_of(w.best) + ")" : "");
  }
  fmt::print(
      "\n{} steps, {} workloads: error of the step median {:.1f} %, 90th percentile {:.1f} %; regret mean "
      "{:.2f} %, "
      "worst {:.1f} %\n",
      result.steps.size(), result.workloads.size(), 100 * result.median_error, 100 * result.p90_error,
      100 * result.mean_regret, 100 * result.worst_regret);
}

}  // namespace shoal::cli
