// Plans for clusters that are only described, so that nothing depends on this machine.
#include "planner/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>

#include "config/layout.h"
#include "core/error.h"
#include "parallel/pipeline/stages.h"
#include "planner/described_machine.h"
#include "planner/dry_run.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPlanned = R"(
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
  auto config = parse_config(kPlanned, "test", settings);
  if (memory > 0) config.plan.memory_gib = memory / (1 << 30);
  return search_plans(config, ranks, machine);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Hosts have four devices: some groups of three lie across two hosts, unless one host has all ranks.
TEST(DescribedMachine, AGroupMayLieAcrossHosts) {
  DescribedMachine machine(cluster_of());
  const auto seconds = [&](int ranks, int stride, int world) {
    return machine.seconds({.bytes = 1e9, .ranks = ranks, .stride = stride, .world = world});
  };
  EXPECT_GT(seconds(3, 1, 12), 1.5 * seconds(3, 1, 3));
  EXPECT_EQ(seconds(2, 1, 12), seconds(2, 1, 2));
  EXPECT_EQ(seconds(2, 2, 12), seconds(2, 2, 4));
  EXPECT_GT(seconds(2, 3, 12), 1.5 * seconds(2, 3, 4));
}

// The fastest layout among all combinations of these choices, each a text of keys, predicted one by one.
double fastest_by_brute_force(int ranks, double memory,
                              const std::vector<std::vector<std::string>>& choices) {
  DescribedMachine machine(cluster_of());
  double best = INFINITY;
  const auto visit = [&](auto&& self, std::size_t next, const std::string& text) -> void {
    if (next < choices.size()) {
      for (const auto& choice : choices[next]) self(self, next + 1, text + " " + choice);
      return;
    }
    try {
      auto config = parse_config(kPlanned, "test", words_of(text));
      const int micro_batch = config.train.micro_batch;
      resolve_layout(config, ranks);
      if (config.train.micro_batch != micro_batch) return;
      const auto plan = make_plan(config);
      if (plan.engine.micro_batches % plan.mesh.data != 0) return;
      const auto prediction = predict(plan, machine);
      if (prediction.memory <= memory) best = std::min(best, prediction.seconds());
    } catch (const UserError&) {
    }
  };
  visit(visit, 0, "");
  return best;
}

const std::vector<std::string> kSchedules = {
    "parallel.schedule=1f1b", "parallel.schedule=1f1b parallel.stages=1,3",
    "parallel.schedule=1f1b parallel.stages=2,2", "parallel.schedule=1f1b parallel.stages=3,1",
    "parallel.schedule=interleaved parallel.chunks=2"};

TEST(Search, FindsTheFastestOfAllLayouts) {
  for (const int ranks : {1, 2, 4}) {
    const auto all = search({}, ranks);
    ASSERT_FALSE(all.plans.empty());
    const double best = fastest_by_brute_force(
        ranks, 0.8e12,
        {{"parallel.pipeline=1", "parallel.pipeline=2", "parallel.pipeline=4"},
         {"parallel.tensor=1", "parallel.tensor=2 parallel.sequence=false",
          "parallel.tensor=2 parallel.sequence=true", "parallel.tensor=4 parallel.sequence=false",
          "parallel.tensor=4 parallel.sequence=true"},
         {"parallel.zero=0", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3"},
         {"train.micro_batch=1", "train.micro_batch=2", "train.micro_batch=4", "train.micro_batch=8",
          "train.micro_batch=16"},
         kSchedules});
    EXPECT_DOUBLE_EQ(all.plans.front().prediction.seconds(), best) << ranks;
  }
}

// Stages that do not fit recompute the fewest blocks.
TEST(Search, FindsTheFastestThatFits) {
  std::vector<std::string> recomputations = {"train.recompute=none"};
  for (const char* kind : {"gelu", "light", "block"}) {
    for (int first = 0; first <= 4; ++first) {
      for (int second = 0; second <= 4; ++second)
        recomputations.push_back(
            fmt::format("train.recompute={} train.recompute_blocks={},{}", kind, first, second));
    }
  }
  const std::vector<std::string> given = {"parallel.pipeline=2", "parallel.data=1", "train.micro_batch=4"};
  const auto memory_of = [&](const char* recompute) {
    auto settings = given;
    settings.insert(settings.end(), {recompute, "parallel.stages=2,2"});
    return search(settings, 2).plans.front().prediction.memory;
  };
  const double most = memory_of("train.recompute=none"), least = memory_of("train.recompute=block");
  int recomputed = 0;
  for (const double share : {0.9, 0.7, 0.5, 0.3, 0.0, -0.5}) {
    const double limit = least + share * (most - least);
    const auto found = search(given, 2, cluster_of(), limit);
    const double best = fastest_by_brute_force(2, limit,
                                               {{"parallel.pipeline=2 train.micro_batch=4"},
                                                {kSchedules.begin(), kSchedules.end() - 1},
                                                recomputations});
    if (found.plans.empty()) {
      EXPECT_EQ(best, INFINITY) << share;
      continue;
    }
    const auto& plan = found.plans.front();
    EXPECT_LE(plan.prediction.memory, limit);
    EXPECT_NEAR(plan.prediction.seconds() / best, 1, 1e-9) << share << " " << layout_arguments(plan.config);
    recomputed += plan.config.train.recompute != Recompute::none ? 1 : 0;
  }
  EXPECT_GE(recomputed, 3);
}

// The stages in the middle have two blocks, those at the ends one.
TEST(Search, StagesInTheMiddleFitToo) {
  const std::vector<std::string> given = {"model.n_layer=12", "model.vocab_size=100", "parallel.pipeline=8",
                                          "train.micro_batch=1"};
  auto recomputed = given;
  recomputed.insert(recomputed.end(), {"parallel.stages=1,1,1,2,2,2,2,1", "train.recompute=block"});
  const DescribedMachine machine(cluster_of());
  const double least = search(recomputed, 8).plans.front().prediction.memory;
  for (const double share : {0.9, 0.99, 1.0, 1.1}) {
    const auto found = search(given, 8, cluster_of(), share * least);
    EXPECT_EQ(found.plans.size(), share < 1 ? 0u : 1u) << share;
    for (const auto& p : found.plans) {
      for (int stage = 0; stage < 8; ++stage)
        EXPECT_LE(memory_of_stage(p.plan, machine, stage), share * least) << stage;
    }
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

// The exchange goes on beside the passes, so it costs nothing until it takes longer than they do.
TEST(Search, GossipExchangesBesideThePasses) {
  const auto seconds = [](double bandwidth, const std::string& topology) {
    return search({"parallel.engine=gossip", "gossip.topology=" + topology, "parallel.pipeline=1",
                   "parallel.tensor=1", "train.micro_batch=1"},
                  4, cluster_of(1e12, bandwidth))
        .plans.front()
        .prediction.seconds();
  };
  EXPECT_NEAR(seconds(1e12, "ring") / seconds(1e11, "ring"), 1, 0.05);
  const double ring = seconds(1e6, "ring"), complete = seconds(1e6, "complete");
  // Two workers swap halves twice; all four do so with three quarters.
  EXPECT_NEAR(complete / ring, 1.5, 0.05);
  for (const auto& p : search({"parallel.engine=gossip", "gossip.worker_size=2"}, 8).plans) {
    EXPECT_EQ(p.plan.mesh.workers * p.plan.mesh.ranks_of_worker(), 8);
  }
}

// A worker's ranks share its micro-batches, and a host of four ranks has fewer workers than ranks.
TEST(Search, WorkersOfGossipMayHaveSeveralRanks) {
  for (const char* sums : {"run.deterministic=off", "run.deterministic=layout"}) {
    const auto found = search(
        {"parallel.engine=gossip", "parallel.tensor=2", "parallel.pipeline=1", "train.global_batch=4", sums},
        8);
    ASSERT_FALSE(found.plans.empty()) << sums;
    for (const auto& p : found.plans) {
      EXPECT_EQ(p.plan.mesh.workers, 4);
      EXPECT_EQ(p.config.gossip.local_size, 2);
    }
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

// A step takes as long as predicted, or in the mesh `slow` four times that. Makes `budget` trials.
struct SearchedMachine : Machine {
  std::string name() const override { return machine.name(); }
  SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) override {
    return machine.times(sample, kernels);
  }
  double seconds(const GroupCall& call) override { return machine.seconds(call); }
  double delay(const GroupCall& call) override { return machine.delay(call); }
  bool overlaps() const override { return machine.overlaps(); }
  int ranks_per_host() const override { return machine.ranks_per_host(); }
  double memory_of_rank() const override { return machine.memory_of_rank(); }
  double true_seconds(const RunPlan& plan) {
    return predict(plan, machine).seconds() * (plan.mesh == slow ? 4 : 1);
  }
  Trials try_step(const RunPlan& plan, int most) override {
    if (std::ranges::find(known, plan) == known.end()) {
      if (std::ssize(known) == budget) return {};
      known.push_back(plan);
    }
    return {true_seconds(plan), most};
  }
  DescribedMachine machine{cluster_of()};
  MeshShape slow;
  std::ptrdiff_t budget = 1000;
  std::vector<RunPlan> known;
};

TEST(Search, StepsThatAreMadeDecide) {
  const std::vector<std::string> settings = {"parallel.pipeline=1", "train.micro_batch=4"};
  const auto config = parse_config(kPlanned, "test", settings);
  SearchedMachine machine;
  const auto predicted = search_plans(config, 4, machine.machine);
  EXPECT_EQ(predicted.plans.front().tried.count, 0);
  machine.slow = predicted.plans.front().plan.mesh;
  const auto tried = search_plans(config, 4, machine);
  double best = INFINITY;
  for (const auto& p : predicted.plans) best = std::min(best, machine.true_seconds(p.plan));
  EXPECT_EQ(tried.plans.front().tried.seconds, best);
  EXPECT_NE(tried.plans.front().plan.mesh, machine.slow);
  EXPECT_EQ(tried.plans.size(), predicted.plans.size());
  const auto untried = [](const RankedPlan& p) { return p.tried.count == 0; };
  const auto first = std::ranges::find_if(tried.plans, untried);
  EXPECT_TRUE(std::ranges::all_of(first, tried.plans.end(), untried)) << "they come behind the others";
}

TEST(Search, TrialsThatRunOutOfTimeLeaveWhatTheyHave) {
  SearchedMachine machine;
  machine.budget = 2;
  const auto result = search_plans(parse_config(kPlanned, "test", {}), 4, machine);
  EXPECT_GT(result.plans[0].tried.count, 0);
  EXPECT_GT(result.plans[1].tried.count, 0);
  EXPECT_EQ(result.plans[2].tried.count, 0);
}

TEST(Search, KeysThatAreGivenAreConstraints) {
  for (const auto& p : search({"parallel.tensor=2", "train.micro_batch=2"}, 4).plans) {
    EXPECT_EQ(p.plan.mesh.tensor, 2);
    EXPECT_EQ(p.plan.pipeline.batch.batch, 2);
  }
  for (const auto& p : search({"parallel.pipeline=2", "parallel.stages=3,1"}, 4).plans)
    EXPECT_EQ(p.plan.ranges[0].end, 4) << "the embedding and three blocks";
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

// Sums of a fixed order depend on the micro-batch, and a run's results must not depend on its ranks.
TEST(Search, LayoutExactRunsHaveOneMicroBatch) {
  for (const int ranks : {1, 2, 4}) {
    for (const auto& p : search({"run.deterministic=layout"}, ranks).plans)
      EXPECT_EQ(p.config.train.micro_batch, 2);
  }
}

// `shoal config --dump` and the plan.toml of a run have every key, those too that are left to Shoal.
TEST(Search, KeysThatAreGivenAsAutomaticAreNoConstraints) {
  const auto layouts = [](const std::vector<std::string>& settings) {
    std::vector<std::string> all;
    for (const auto& p : search(settings, 4).plans) all.push_back(layout_arguments(p.config));
    return all;
  };
  const auto free = layouts({});
  EXPECT_EQ(layouts({"train.micro_batch=0"}), free);
  EXPECT_EQ(layouts({"train.recompute_blocks=", "parallel.stages=", "train.threads=0"}), free);
  for (const auto& p : search({"train.micro_batch=0", "run.deterministic=layout"}, 4).plans)
    EXPECT_EQ(p.config.train.micro_batch, 2);
}

TEST(Search, RefusesConstraintsThatNoLayoutSatisfies) {
  const auto refusal = [](const std::vector<std::string>& settings, int ranks) {
    try {
      search(settings, ranks);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal({"plan.instance_ranks=3"}, 4), HasSubstr("no layout of 4 ranks satisfies the config"));
  const std::vector<std::string> data = {"parallel.tensor=1", "parallel.pipeline=1"};
  EXPECT_EQ(refusal(data, 3),
            "no layout of 3 ranks satisfies the config: train.global_batch = 16 cannot be divided evenly "
            "among 3 data ranks; set it to 15 or 18");
  EXPECT_EQ(refusal({"parallel.tensor=1", "parallel.pipeline=1", "train.micro_batch=8"}, 4),
            "no layout of 4 ranks satisfies the config: 2 micro-batches of a step (train.global_batch = 16, "
            "train.micro_batch = 8) cannot be divided evenly among 4 data ranks; set train.micro_batch=4");
  EXPECT_THAT(refusal({"parallel.tensor=3"}, 4), HasSubstr("parallel.tensor = 3 asks for a multiple of 3"));
}

TEST(Search, NeedsALinkBetweenHostsWhereThereAreSeveral) {
  auto cluster = cluster_of();
  cluster.file = "small.toml";
  cluster.between = {};
  EXPECT_FALSE(search({}, 4, cluster).plans.empty()) << "one host";
  EXPECT_THAT([&] { search({}, 8, cluster); },
              ::testing::ThrowsMessage<UserError>(testing::AllOf(
                  HasSubstr("small.toml: between.gb_s is missing"), testing::EndsWith("at most 4 ranks"))));
  cluster.devices_per_host = 1;
  EXPECT_THAT([&] { search({}, 2, cluster); },
              ::testing::ThrowsMessage<UserError>(testing::EndsWith("at most 1 rank")));
}

// A GPU of this machine, with the times of a described one.
class MeasuredGpu final : public Machine {
 public:
  explicit MeasuredGpu(double memory) : gpu_(cluster_of()), memory_(memory) {}
  std::string name() const override { return "a GPU"; }
  SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) override {
    return gpu_.times(sample, kernels);
  }
  double seconds(const GroupCall& call) override { return gpu_.seconds(call); }
  bool measures() const override { return true; }
  bool overlaps() const override { return true; }
  int ranks_per_host() const override { return 1; }
  double memory_of_rank() const override { return memory_; }

 private:
  DescribedMachine gpu_;
  double memory_;
};

TEST(Search, PutsStateOnTheHostWhereNothingFitsOtherwise) {
  const std::vector<std::string> settings = {"train.micro_batch=1", "train.recompute=block",
                                             "model.n_embd=256", "model.n_layer=24"};
  const auto search_with = [&](double memory, std::vector<std::string> more) {
    MeasuredGpu machine(memory);
    more.insert(more.end(), settings.begin(), settings.end());
    return search_plans(parse_config(kPlanned, "test", more), 1, machine);
  };
  const auto memory = [&](const std::vector<std::string>& more) {
    return search_with(1e12, more).plans.front().prediction.memory;
  };
  const double resident = memory({}), host = memory({"parallel.offload=host", "parallel.zero=0"}),
               least = memory({"parallel.offload=host", "parallel.zero=3"});
  EXPECT_LT(host, resident);
  EXPECT_LT(least, host);
  const auto offload_of = [&](double limit, const std::vector<std::string>& more) {
    const auto result = search_with(limit, more);
    return result.plans.empty() ? "none fits" : layout_arguments(result.plans.front().config);
  };
  EXPECT_THAT(offload_of(resident, {}), testing::Not(HasSubstr("offload")));
  EXPECT_THAT(offload_of(host, {}), HasSubstr("parallel.offload=host"));
  EXPECT_THAT(offload_of(least, {}), HasSubstr("parallel.zero=3 parallel.offload=host"));
  EXPECT_EQ(offload_of(host, {"parallel.offload=none"}), "none fits");
  EXPECT_EQ(offload_of(0.9 * least, {}), "none fits");
}

TEST(Search, RefusesStateWithoutAPrediction) {
  EXPECT_THAT([] { search({"parallel.offload=host"}, 1); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("not on a described cluster")));
  EXPECT_THAT([] { search({"parallel.offload=disk"}, 1); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("has no prediction")));
  EXPECT_FALSE(search({"parallel.offload=host", "train.backend=cpu"}, 2).plans.empty())
      << "state is on the host already";
}

// A layout's traffic and memory are those of the dry run, which executes all ranks.
TEST(Search, EveryPlanRunsDry) {
  const auto result = search({}, 4);
  for (std::size_t i = 0; i < result.plans.size(); i += 7) {
    const auto run = dry_run(result.plans[i].plan);
    double most = 0;
    for (const auto& rank : run.ranks) most = std::max(most, static_cast<double>(rank.allocated));
    EXPECT_LE(most + estimate_memory(result.plans[i].plan).cuda, result.plans[i].prediction.memory)
        << layout_arguments(result.plans[i].config);
  }
}

TEST(Search, ArgumentsOfALayoutGiveItsPlan) {
  for (const auto& p : search({}, 4).plans) {
    const auto text = layout_arguments(p.config);
    auto config = parse_config(kPlanned, "test", words_of(text));
    resolve_layout(config, 4);
    EXPECT_EQ(make_plan(config), p.plan) << text;
  }
}

}  // namespace
}  // namespace shoal
