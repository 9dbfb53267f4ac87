#include "cli/planning.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/sizes.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "launch/ranks.h"
#include "planner/described_machine.h"
#include "planner/measured_machine.h"

namespace shoal::cli {
namespace {

// A plan of data ranks alone, without sharding.
const RankedPlan* plain_data(const SearchResult& result) {
  const auto found = std::ranges::find_if(result.plans, [](const RankedPlan& p) {
    return p.plan.ranks_of_model() == 1 && p.plan.engine.zero == 0;
  });
  return found == result.plans.end() ? nullptr : &*found;
}

// "5.2 % faster than LAYOUT, mostly by its tensor term (12.1 ms less)".
std::string gain(const RankedPlan& best, const RankedPlan& other, const std::string& name) {
  const double a = best.prediction.seconds(), b = other.prediction.seconds();
  int most = 0;
  double least = 0;
  for (int i = 0; i < kCostTerms; ++i) {
    const auto k = static_cast<std::size_t>(i);
    const double difference = best.prediction.terms[k] - other.prediction.terms[k];
    if (difference < least) {
      least = difference;
      most = i;
    }
  }
  return fmt::format("{:.1f} % faster than {}{}", 100 * (b / a - 1), name,
                     least < 0 ? fmt::format(", mostly by {}: {:.2f} ms less", name_of(static_cast<CostTerm>(most)), -1e3 * least)
                               : "");
}

}  // namespace

int ranks_of_plan(const Config& config, int asked) { return ranks_to_start(config, asked, {}); }

std::unique_ptr<Machine> measured_machine(int ranks, bool quiet) {
  return std::make_unique<MeasuredMachine>(ranks, [quiet](const std::string& what) {
    if (!quiet) log::info("measuring: {}", what);
  });
}

std::unique_ptr<Machine> described_machine(const std::string& file, Config& config) {
  config.train.backend = BackendKind::cuda;
  return std::make_unique<DescribedMachine>(read_cluster(file));
}

void require_plan(const SearchResult& result, int ranks) {
  if (!result.plans.empty()) return;
  const auto& least = *result.smallest;
  const double need = least.prediction.memory;
  fail_user(
      "no layout of {} rank{} fits {} per rank: the smallest of {} takes {} ({}); give a rank that much "
      "(plan.memory_gib={:.1f}), start more ranks, or choose a smaller model",
      ranks, ranks == 1 ? "" : "s", format_bytes(result.limit), result.considered, format_bytes(need),
      layout_arguments(least.config), need / (1 << 30) + 0.05);
}

std::string explain_plan(const SearchResult& result) {
  const auto& best = result.plans.front();
  std::string text = fmt::format("best: {}", layout_arguments(best.config));
  if (result.plans.size() > 1) {
    text += fmt::format("\n  {}", gain(best, result.plans[1], "the next (" + layout_arguments(result.plans[1].config) + ")"));
  }
  const auto* data = plain_data(result);
  if (data && data != &best && (result.plans.size() < 2 || data != &result.plans[1])) {
    text += fmt::format("\n  {}", gain(best, *data, "plain data parallelism (" + layout_arguments(data->config) + ")"));
  } else if (!data && best.plan.mesh.ranks() > 1) {
    text += "\n  plain data parallelism does not fit, or is excluded by the config";
  }
  return text;
}

Config planned(Config config, int ranks) {
  resolve_vocabulary(config);
  const auto machine = measured_machine(ranks);
  const auto result = search_plans(config, ranks, *machine, config.plan.memory_gib * (1 << 30));
  require_plan(result, ranks);
  const auto& best = result.plans.front();
  log::info("plan: {}", layout_arguments(best.config));
  const auto why = explain_plan(result);
  const auto line = why.find("\n  ");
  log::info("plan: {} of {} layouts{}{}", "the fastest", result.considered, line == std::string::npos ? "" : ", ",
            line == std::string::npos ? "" : why.substr(line + 3, why.find('\n', line + 1) - line - 3));
  log::info("plan: {:.2f} ms per step and {} per rank, predicted", 1e3 * best.prediction.seconds(),
            format_bytes(best.prediction.memory));
  return best.config;
}

}  // namespace shoal::cli
