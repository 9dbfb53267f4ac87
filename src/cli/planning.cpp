#include "cli/planning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "checkpoint/store.h"
#include "cli/sizes.h"
#include "comm/agreement.h"
#include "config/layout.h"
#include "config/pretrained.h"
#include "config/schema.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text.h"
#include "planner/described_machine.h"
#include "report/trace_picture.h"

namespace shoal::cli {
namespace {

const RankedPlan* plain_data(const SearchResult& result) {
  const auto found = std::ranges::find_if(result.plans, is_plain_data, &RankedPlan::plan);
  return found == result.plans.end() ? nullptr : &*found;
}

// "5.2 % faster than LAYOUT, mostly by its tensor term (12.1 ms less)", by prediction, or where both were
// tried "5.2 % faster than LAYOUT in steps that were made".
std::string gain(const RankedPlan& best, const RankedPlan& other, const std::string& name) {
  if (best.tried.count > 0 && other.tried.count > 0) {
    const double ratio = other.tried.seconds / best.tried.seconds;
    if (ratio < 1)
      return fmt::format("{:.1f} % slower than {} in steps that were made here, but predicted to be faster",
                         100 * (1 / ratio - 1), name);
    return fmt::format("{:.1f} % faster than {} in steps that were made here", 100 * (ratio - 1), name);
  }
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
  if (a > b)
    return fmt::format("tried, unlike {}, which was predicted {:.1f} % faster", name, 100 * (a / b - 1));
  return fmt::format("{:.1f} % faster than {}{}", 100 * (b / a - 1), name,
                     least < 0 ? fmt::format(", mostly by {}: {:.2f} ms less",
                                             name_of(static_cast<CostTerm>(most)), -1e3 * least)
                               : "");
}

}  // namespace

std::unique_ptr<MeasuredMachine> measured_machine(const Config& config, const Job& job, bool quiet,
                                                  bool again) {
  MeasuringOptions options{.cache = MeasuredMachine::default_cache(), .again = again};
  if (config.train.backend == BackendKind::cuda) {
    if (job.ranks > 1 || job.world) {
      fail_user(
          "one GPU is measured, and several have to be described: shoal plan CONFIG --ranks {} --cluster "
          "configs/clusters/a100.toml",
          job.ranks);
    }
    if (const auto why = no_cuda_device(); !why.empty()) {
      fail_user("plans for a GPU measure it, but {}; --cluster plans for GPUs that are described", why);
    }
    options.gpu = cuda_devices().front();
  }
  if (!quiet) options.tell = [](const std::string& what) { log::info("measuring: {}", what); };
  if (job.world) return std::make_unique<MeasuredMachine>(*job.world, std::move(options));
  return std::make_unique<MeasuredMachine>(job.ranks, std::move(options));
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

std::vector<std::string> reasons_for_best(const SearchResult& result) {
  const auto& best = result.plans.front();
  std::vector<std::string> reasons;
  if (result.plans.size() > 1) {
    const auto& next = result.plans[1];
    reasons.push_back(gain(best, next, "the next (" + layout_arguments(next.config) + ")"));
  }
  const auto* data = plain_data(result);
  if (data && data != &best && data != &result.plans[1]) {
    reasons.push_back(gain(best, *data, "plain data parallelism (" + layout_arguments(data->config) + ")"));
  } else if (!data && best.plan.mesh.ranks() > 1) {
    reasons.push_back(result.plain_data_left_out
                          ? "plain data parallelism did not promise to be faster, and was not predicted"
                          : "plain data parallelism does not fit, or is excluded by the config");
  }
  return reasons;
}

std::string timeline_svg(const RankedPlan& p) {
  TraceStep step{
      .name = "step 1",
      .heading = mesh_text(p.plan).empty() ? "Predicted step" : "Predicted step, " + mesh_text(p.plan),
      .seconds = p.prediction.seconds(),
      .rows = {}};
  for (std::size_t stage = 0; stage < p.prediction.step.spans.size(); ++stage) {
    TraceRow row{.rank = fmt::format("stage {}", stage), .place = "", .compute = {}, .waits = {}};
    double end = 0;
    for (const auto& span : p.prediction.step.spans[stage]) {
      const bool forward = span.term == CostTerm::forward, backward = span.term == CostTerm::backward;
      if (span.begin > end) row.waits.push_back({"wait", "other stages", "", end, span.begin});
      end = span.end;
      if (forward || backward) {
        row.compute.push_back({"micro-batch", forward ? "forward" : "backward", std::to_string(span.pass),
                               span.begin, span.end});
      } else if (span.term == CostTerm::update) {
        row.compute.push_back({"optimizer", "update", "", span.begin, span.end});
      } else {
        row.waits.push_back({"wait", std::string(name_of(span.term)), "", span.begin, span.end});
      }
    }
    if (step.seconds > end) row.waits.push_back({"wait", "other stages", "", end, step.seconds});
    step.rows.push_back(std::move(row));
  }
  return trace_svg(step);
}

std::vector<std::string> settings_to_keep(const Config& config, int ranks) {
  const auto run = config.run.path();
  const auto stored = run / "plan.toml";
  const bool begun = config.checkpoint.memory || latest_in(run / kCheckpointsName);
  if (!begun || !std::filesystem::exists(stored)) return {};
  Config last;
  try {
    last = load_config(stored);
  } catch (const UserError&) {
    return {};
  }
  // The file of a start that was killed while it wrote it.
  if (!last.given.contains(config_fields().back().name())) return {};
  std::vector<std::string> settings;
  const auto keep = [&](const char* key, const auto& value) {
    if (!config.given.contains(key)) settings.push_back(fmt::format("{}={}", key, value));
  };
  auto mesh = config.parallel;  // a size that is not given is 1
  if (config.run.deterministic == Determinism::layout) {
    keep("parallel.tensor", last.parallel.tensor);
    keep("parallel.sequence", last.parallel.sequence);
    if (!config.given.contains("parallel.tensor")) mesh.tensor = last.parallel.tensor;
  }
  if (mesh.engine == EngineKind::gossip && last.parallel.engine == EngineKind::gossip) {
    const int models = worker_count(last) * config.gossip.worker_size;
    if (ranks % (models * ranks_of_model(mesh)) == 0) keep("plan.instance_ranks", ranks / models);
  }
  return settings;
}

namespace {

// The settings that rank 0 finds, on every rank of a job: other hosts may not see the run's folder yet.
std::vector<std::string> agreed_settings(const Config& config, const Job& job) {
  const bool reads = !job.world || job.world->ranks.rank() == 0;
  auto settings = reads ? settings_to_keep(config, job.ranks) : std::vector<std::string>();
  if (!job.world) return settings;
  std::istringstream words(broadcast_text(job.world->ranks, fmt::format("{}", fmt::join(settings, " "))));
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

RankedPlan plan_run(Config config, const Job& job) {
  if (config.init.resumes() || start_without_checkpoint(config.init.from)) {
    const auto kept = agreed_settings(config, job);
    apply_arguments(config, kept);
    if (!kept.empty()) log::info("plan: {}, as the run has begun", fmt::join(kept, " "));
  }
  resolve_vocabulary(config);
  const auto machine = measured_machine(config, job);
  auto result = search_plans(config, job.ranks, *machine);
  require_plan(result, job.ranks);
  const auto reasons = reasons_for_best(result);
  auto best = std::move(result.plans.front());
  log::info("plan: {}", layout_arguments(best.config));
  log::info("plan: {}",
            reasons.empty()
                ? result.considered > 1
                      ? fmt::format("of {} layouts, no other promises to be as fast", result.considered)
                      : "the only layout"
                : fmt::format("of {} layouts, {}", result.considered, reasons.front()));
  log::info("plan: {:.2f} ms per step and {} per rank, predicted{}", 1e3 * best.prediction.seconds(),
            format_bytes(best.prediction.memory),
            best.tried.count > 0 ? fmt::format("; {:.2f} ms in a trial", 1e3 * best.tried.seconds) : "");
  return best;
}

}  // namespace shoal::cli
