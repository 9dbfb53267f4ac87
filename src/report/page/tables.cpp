#include "report/page/tables.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/memory.h"
#include "config/plan.h"
#include "config/schema.h"
#include "core/error.h"
#include "core/text.h"
#include "report/schedule_picture.h"

namespace shoal {
namespace {

using nlohmann::ordered_json;
using Facts = std::vector<std::pair<std::string, std::string>>;

// The values of a key, where they differ.
std::vector<std::optional<std::string>> values_of(const Field& field,
                                                  std::span<const Config* const> configs) {
  std::vector<std::optional<std::string>> values;
  for (const auto* config : configs) {
    values.push_back(config ? std::optional(field.value(*config)) : std::nullopt);
  }
  return values;
}

bool all_equal(const std::vector<std::optional<std::string>>& values) {
  const std::optional<std::string>* first = nullptr;
  for (const auto& value : values) {
    if (value && first && *first != value) return false;
    if (value) first = &value;
  }
  return true;
}

ordered_json nullable(const std::vector<std::optional<std::string>>& values) {
  auto json = ordered_json::array();
  for (const auto& value : values) json.push_back(value ? ordered_json(*value) : ordered_json());
  return json;
}

std::string gossip_text(const Topology& topology) {
  return fmt::format("{}, {} workers, {} round{}", topology.name, topology.workers, topology.period(),
                     topology.period() == 1 ? "" : "s");
}

std::string batch_text(const Config& config) {
  return fmt::format(
      "{} x {} = {} tokens, micro-batches of {}", config.train.global_batch, config.model.block_size,
      with_commas(static_cast<std::int64_t>(config.train.global_batch) * config.model.block_size),
      config.train.micro_batch);
}

Facts facts_of_plan(const Config& config, const RunPlan& plan) {
  const auto mesh = mesh_text(plan);
  const auto ranks = plan.mesh.ranks();
  Facts facts = {
      {"parameters", with_commas(parameter_count(gpt_units(plan.model)))},
      {"batch", batch_text(config)},
      {"ranks", mesh.empty() ? std::to_string(ranks) : fmt::format("{} ({})", ranks, mesh)},
      {"arithmetic", fmt::format("{} on {}", types_text(plan), name_of_choice(config, "train.backend"))},
      {"recomputed", std::string(name_of_choice(config, "train.recompute"))},
      {"optimizer", std::string(name_of_choice(config, "optim.name"))},
  };
  if (plan.mesh.data > 1) facts.emplace_back("sharding", fmt::format("ZeRO-{}", plan.engine.zero));
  if (plan.topology()) facts.emplace_back("gossip", gossip_text(*plan.topology()));
  for (int stage = 0; plan.mesh.pipeline > 1 && stage < plan.mesh.pipeline; ++stage)
    facts.emplace_back(fmt::format("stage {}", stage), stage_text(plan, stage));
  facts.emplace_back(
      plan.backend == BackendKind::cuda ? "memory of a GPU, estimated" : "memory of a rank, estimated",
      format_bytes(estimate_memory(plan, RankCounts::as_threads(ranks)).of_device()));
  return facts;
}

}  // namespace

ordered_json differences_json(std::span<const PageRun> runs) {
  const Config defaults;
  std::vector<const Config*> configs;
  ordered_json json = {{"columns", ordered_json::array()}, {"rows", ordered_json::array()}};
  if (runs.size() == 1) {
    configs.push_back(&defaults);
    json["columns"].push_back("default");
  }
  for (const auto& run : runs) {
    configs.push_back(run.config ? &*run.config : nullptr);
    json["columns"].push_back(run.name);
  }
  for (const auto& field : config_fields()) {
    const auto values = values_of(field, configs);
    if (all_equal(values) || field.name() == "run.name") continue;
    json["rows"].push_back({{"key", field.name()}, {"meaning", field.doc}, {"values", nullable(values)}});
  }
  return json;
}

ordered_json plans_json(std::span<PageRun> runs) {
  std::vector<std::string> keys;  // of all plans, in the order in which they come
  std::vector<std::map<std::string, std::string>> plans(runs.size());
  auto schedules = ordered_json::array();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto& run = runs[i];
    if (!run.plan) continue;
    try {
      const auto plan = make_plan(*run.plan);
      for (auto& [key, value] : facts_of_plan(*run.plan, plan)) {
        if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
        plans[i][key] = std::move(value);
      }
      if (plan.mesh.pipeline == 1) continue;
      const auto& parallel = run.plan->parallel;
      const auto schedule =
          make_schedule(parallel.schedule, {parallel.pipeline, parallel.chunks, plan.pipeline.micro_batches});
      schedules.push_back({{"run", i}, {"svg", schedule_svg(schedule)}});
    } catch (const UserError& error) {
      run.notes.push_back(fmt::format("its plan cannot be shown: {}", error.what()));
    }
  }
  ordered_json json = {{"rows", ordered_json::array()}, {"schedules", std::move(schedules)}};
  for (const auto& key : keys) {
    auto values = ordered_json::array();
    for (const auto& plan : plans) {
      const auto found = plan.find(key);
      values.push_back(found == plan.end() ? ordered_json() : ordered_json(found->second));
    }
    json["rows"].push_back({{"key", key}, {"values", std::move(values)}});
  }
  return json;
}

}  // namespace shoal
