// Plans for clusters that are only described, so that nothing depends on this machine.
#include "planner/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/layout.h"
#include "core/error.h"
#include "parallel/pipeline/stages.h"
#include "planner/described_machine.h"
#include "planner/dry_run.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

constexpr const char* kConfig = R"(
data.dir = "none"
run.name = "planned"
[model]
n_layer = 4
n_head = 4
n_embd = 64
block_size = 32
vocab_size = 1000
[train]
backend = "cuda"
dtype = "bfloat16"
global_batch = 16
steps = 1
)";

Cluster cluster_of(double memory = 1e12, double bandwidth = 1e11) {
  Cluster cluster{.name = "test", .devices_per_host = 4, .memory = memory};
  cluster.peak_float32 = 2e13;
  cluster.peak_bfloat16 = 3e14;
  cluster.bandwidth = 2e12;
  cluster.processors = 100;
  cluster.launch = 4e-6;
  cluster.inside = {.latency = 1e-5, .bandwidth = bandwidth};
  cluster.between = {.latency = 3e-5, .bandwidth = bandwidth / 2};
  return cluster;
}

SearchResult search(const std::vector<std::string>& settings, int ranks,
                    const Cluster& cluster = cluster_of(), double memory = 0) {
  DescribedMachine machine(cluster);
  auto config = parse_config(kConfig, "test", settings);
  if (memory > 0) config.plan.memory_gib = memory / (1 << 30);
  return search_plans(config, ranks, machine);
}

// Every combination of the keys that is a layout, predicted one by one.
double fastest_by_brute_force(int ranks, double memory) {
  DescribedMachine machine(cluster_of());
  double best = INFINITY;
  for (const int pipeline : {1, 2, 4}) {
    for (const int tensor : {1, 2, 4}) {
      for (const char* sequence : {"false", "true"}) {
        for (const int zero : {0, 1, 2, 3}) {
          for (const int micro_batch : {1, 2, 4, 8, 16}) {
            for (const char* schedule :
                 {"parallel.schedule=1f1b", "parallel.schedule=interleaved parallel.chunks=2",
                  "parallel.schedule=interleaved parallel.chunks=4"}) {
              for (const char* recompute : {"none", "gelu", "light", "block"}) {
                std::vector<std::string> settings = {fmt::format("parallel.pipeline={}", pipeline),
                                                     fmt::format("parallel.tensor={}", tensor),
                                                     fmt::format("parallel.sequence={}", sequence),
                                                     fmt::format("parallel.zero={}", zero),
                                                     fmt::format("train.micro_batch={}", micro_batch),
                                                     fmt::format("train.recompute={}", recompute)};
                const std::string text = schedule;
                const auto space = text.find(' ');
                settings.push_back(text.substr(0, space));
                if (space != std::string::npos) settings.push_back(text.substr(space + 1));
                try {
                  auto config = parse_config(kConfig, "test", settings);
                  resolve_layout(config, ranks);
                  if (config.train.micro_batch != micro_batch) continue;
                  const auto plan = make_plan(config);
                  if (plan.engine.micro_batches % plan.mesh.data != 0) continue;
                  const auto prediction = predict(plan, machine);
                  if (prediction.memory <= memory) best = std::min(best, prediction.seconds());
                  if (plan.ranges.empty()) continue;
                  // The same with stages that are balanced by time.
                  config.parallel.stages.clear();
                  const auto times = Predictor(machine).unit_seconds(plan);
                  for (const auto& [begin, end] :
                       balanced_ranges(times, static_cast<int>(plan.ranges.size())))
                    config.parallel.stages.push_back(std::min(end, 5) - std::max(begin, 1));
                  const auto other = predict(make_plan(config), machine);
                  if (other.memory <= memory) best = std::min(best, other.seconds());
                } catch (const UserError&) {
                }
              }
            }
          }
        }
      }
    }
  }
  return best;
}

TEST(Search, FindsTheFastestOfAllLayouts) {
  for (const int ranks : {1, 2, 4}) {
    const auto all = search({}, ranks);
    ASSERT_FALSE(all.plans.empty());
    EXPECT_DOUBLE_EQ(all.plans.front().prediction.seconds(), fastest_by_brute_force(ranks, 0.8e12)) << ranks;
  }
}

TEST(Search, MoreMemoryOrAFasterLinkNeverMakesThePlanSlower) {
  const auto roomy = search({}, 4);
  double before = INFINITY;
  bool refused = false;
  for (const double share : {0.3, 0.6, 0.8, 1.0}) {
    const auto tight = search({}, 4, cluster_of(), share * roomy.plans.front().prediction.memory);
    if (tight.plans.empty()) {
      refused = true;
      EXPECT_TRUE(tight.smallest);
      continue;
    }
    EXPECT_LE(tight.plans.front().prediction.seconds(), before) << share;
    before = tight.plans.front().prediction.seconds();
  }
  EXPECT_TRUE(refused);
  before = INFINITY;
  for (const double bandwidth : {1e9, 1e10, 1e11, 1e12}) {
    const auto best = search({}, 4, cluster_of(1e12, bandwidth)).plans.front().prediction.seconds();
    EXPECT_LE(best, before) << bandwidth;
    before = best;
  }
}

TEST(Search, EqualInputsGiveEqualPlans) {
  const auto a = search({}, 4), b = search({}, 4);
  ASSERT_EQ(a.plans.size(), b.plans.size());
  for (std::size_t i = 0; i < a.plans.size(); ++i) {
    EXPECT_EQ(a.plans[i].plan, b.plans[i].plan);
    EXPECT_EQ(a.plans[i].prediction.seconds(), b.plans[i].prediction.seconds());
  }
}

TEST(Search, KeysThatAreGivenAreConstraints) {
  for (const auto& p : search({"parallel.tensor=2", "train.micro_batch=2"}, 4).plans) {
    EXPECT_EQ(p.plan.mesh.tensor, 2);
    EXPECT_EQ(p.plan.pipeline.batch.batch, 2);
  }
  for (const auto& p : search({"plan.instance_ranks=4"}, 4).plans) EXPECT_EQ(p.plan.ranks_of_model(), 4);
  for (const char* tensor : {"parallel.tensor=1", "parallel.tensor=2", "parallel.tensor=4"}) {
    EXPECT_FALSE(search({tensor}, 4).plans.empty()) << tensor;
  }
}

TEST(Search, TheGlobalBatchNeverChanges) {
  for (const auto& p : search({}, 4).plans) {
    EXPECT_EQ(p.config.train.global_batch, 16);
    EXPECT_EQ(p.plan.engine.micro_batches * p.plan.pipeline.batch.batch, 16);
  }
}

TEST(Search, RefusesConstraintsThatNoLayoutSatisfies) {
  try {
    search({"plan.instance_ranks=3"}, 4);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no layout of 4 ranks satisfies the config"));
  }
}

// A layout's traffic and memory are those of the dry run, which executes all ranks.
TEST(Search, EveryPlanRunsDry) {
  const auto result = search({}, 4);
  for (std::size_t i = 0; i < result.plans.size(); i += 7) {
    const auto run = dry_run(result.plans[i].plan);
    double most = 0;
    for (const auto& rank : run.ranks) most = std::max(most, static_cast<double>(rank.allocated));
    EXPECT_LE(most, result.plans[i].prediction.memory) << layout_arguments(result.plans[i].config);
  }
}

TEST(Search, ArgumentsOfALayoutGiveItsPlan) {
  for (const auto& p : search({}, 4).plans) {
    std::vector<std::string> arguments;
    const auto text = layout_arguments(p.config);
    for (std::size_t at = 0; at < text.size();) {
      const auto end = std::min(text.find(' ', at), text.size());
      arguments.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    auto config = parse_config(kConfig, "test", arguments);
    resolve_layout(config, 4);
    EXPECT_EQ(make_plan(config), p.plan) << text;
  }
}

}  // namespace
}  // namespace shoal
