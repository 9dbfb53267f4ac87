// Predictions on machines where little takes time. Where only collectives do, a second for each byte that a
// rank sends, they are compared with the traffic of a dry run.
#include "planner/prediction.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "config/layout.h"
#include "planner/dry_run.h"
#include "planner/sample_tape.h"
#include "planner/stage_actions.h"

namespace shoal {
namespace {

constexpr const char* kPredicted = R"(
data.dir = "none"
run.name = "predicted"
[model]
n_head = 4
n_embd = 64
block_size = 16
vocab_size = 1000
[train]
global_batch = 16
micro_batch = 1
steps = 1
)";

struct ByteMachine final : Machine {
  std::string name() const override { return "bytes"; }
  SampleTimes times(const RunPlan&, const SampleKernels&) override { return {}; }
  double seconds(const GroupCall& call) override {
    if (call.kind == GroupCall::Kind::message) return 0;
    return call.bytes * (call.ranks - 1) / call.ranks * (call.kind == GroupCall::Kind::all_reduce ? 2 : 1);
  }
  bool overlaps() const override { return false; }
  int ranks_per_host() const override { return 8; }
  double memory_of_rank() const override { return 1e12; }
};

// Nothing takes time but what a test sets.
struct FreeMachine final : Machine {
  std::function<double(const GroupCall&)> price = [](const GroupCall&) { return 0.0; };
  double update = 0;  // seconds of an element
  double part = 0;    // seconds of each part of a pass
  double held = 0;    // seconds of the backward pass of a block that need not be recomputed
  int per_host = 8;
  bool beside = false;  // collectives go on beside kernels

  std::string name() const override { return "free"; }
  SampleTimes times(const RunPlan&, const SampleKernels&) override {
    SampleTimes times;
    times.update = update;
    for (auto& pass : times.parts.values) pass.fill(part);
    for (int pass = 0; pass < kSamplePasses; ++pass)
      times.parts.at(pass, StepPart::last_block_backward) += held;
    return times;
  }
  double seconds(const GroupCall& call) override { return price(call); }
  bool overlaps() const override { return beside; }
  int ranks_per_host() const override { return per_host; }
  double memory_of_rank() const override { return 1e12; }
};

double traffic(const DryRun& run, int rank, const std::string& subject) {
  const auto holds = [&](const DryRun::Rank& its) { return std::ranges::count(its.ranks, rank) > 0; };
  double bytes = 0;
  for (const auto& total : std::ranges::find_if(run.ranks, holds)->traffic) {
    if (total.subject == subject) bytes += static_cast<double>(total.bytes);
  }
  return bytes;
}

void expect_traffic_of_dry_run(const std::vector<std::string>& settings) {
  ByteMachine machine;
  auto config = parse_config(kPredicted, "test", settings);
  resolve_layout(config, 8);
  const auto plan = make_plan(config);
  const auto run = dry_run(plan);
  const auto step = predict(plan, machine).step;
  for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
    SCOPED_TRACE(testing::Message() << testing::PrintToString(settings) << ", stage " << stage);
    const int rank = stage * plan.mesh.data;
    const auto& terms = step.terms[static_cast<std::size_t>(stage)];
    EXPECT_NEAR(terms[static_cast<std::size_t>(CostTerm::parameters)], traffic(run, rank, "parameters"), 0.5);
    // Padding is not counted where the end stages add up the gradients of the tied matrix.
    const double tied = traffic(run, rank, "tied gradients"), padding = 8 * 1024 * plan.mesh.data;
    EXPECT_NEAR(terms[static_cast<std::size_t>(CostTerm::gradients)], traffic(run, rank, "gradients") + tied,
                tied > 0 ? padding : 0.5);
  }
}

TEST(Prediction, HasTheTrafficOfADryRun) {
  const std::vector<std::vector<std::string>> all_stages = {
      {},
      {"parallel.pipeline=2"},
      {"parallel.pipeline=2", "parallel.chunks=2", "parallel.schedule=interleaved"}};
  for (const auto& settings : all_stages) {
    for (const char* zero : {"0", "1", "2", "3"}) {
      for (const char* layers : {"4", "5", "9"}) {
        for (const auto& [dtype, stream] :
             {std::pair{"float32", "float32"}, {"bfloat16", "float32"}, {"bfloat16", "bfloat16"}}) {
          auto all = settings;
          all.insert(all.end(),
                     {std::string("parallel.zero=") + zero, std::string("model.n_layer=") + layers,
                      std::string("train.dtype=") + dtype, std::string("train.residual_dtype=") + stream});
          expect_traffic_of_dry_run(all);
        }
      }
    }
  }
}

RunPlan predicted_plan(const std::vector<std::string>& settings, int ranks = 8) {
  auto config = parse_config(kPredicted, "test", settings);
  resolve_layout(config, ranks);
  return make_plan(config);
}

double term_of(const SimulatedStep& step, int stage, CostTerm term) {
  return step.terms[static_cast<std::size_t>(stage)][static_cast<std::size_t>(term)];
}

// Muon's exchanges of hidden matrices beside AdamW's. The rounds in which ranks exchange them are those of
// the sample's blocks, which a stage with more blocks fills otherwise.
TEST(Prediction, HasTheTrafficOfHiddenMatrices) {
  ByteMachine machine;
  for (const char* stages : {"parallel.pipeline=1", "parallel.pipeline=2"}) {
    for (const char* zero : {"parallel.zero=0", "parallel.zero=1"}) {
      for (const char* layers : {"model.n_layer=4", "model.n_layer=9"}) {
        std::vector<std::string> settings = {stages, zero, layers};
        const auto adamw = predict(predicted_plan(settings), machine).step;
        settings.emplace_back("optim.name=muon");
        expect_traffic_of_dry_run(settings);
        const auto plan = predicted_plan(settings);
        const auto muon = predict(plan, machine).step;
        const auto run = dry_run(plan);
        for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
          SCOPED_TRACE(testing::Message() << testing::PrintToString(settings) << ", stage " << stage);
          const double sent = traffic(run, stage * plan.mesh.data, "hidden matrices");
          EXPECT_GT(sent, 0);
          EXPECT_NEAR(term_of(muon, stage, CostTerm::other) - term_of(adamw, stage, CostTerm::other), sent,
                      0.3 * sent);
        }
      }
    }
  }
}

// ZeRO shards an update, and the data ranks share that of hidden matrices without it, too.
TEST(Prediction, DataRanksShareTheUpdateOfHiddenMatrices) {
  FreeMachine machine;
  machine.update = 1;
  const auto update = [&](int ranks, const char* zero, const char* optimizer) {
    const auto plan = predicted_plan({"model.n_layer=4", zero, optimizer}, ranks);
    return term_of(predict(plan, machine).step, 0, CostTerm::update);
  };
  const double alone = update(1, "parallel.zero=0", "optim.name=muon");
  EXPECT_GT(alone, 0);
  EXPECT_EQ(4 * update(4, "parallel.zero=0", "optim.name=muon"), alone);
  EXPECT_EQ(4 * update(4, "parallel.zero=1", "optim.name=muon"), alone);
  EXPECT_EQ(update(4, "parallel.zero=0", "optim.name=adamw"),
            update(1, "parallel.zero=0", "optim.name=adamw"));
}

// All calls of a predicted step.
std::vector<GroupCall> priced_calls(const RunPlan& plan, int per_host = 8) {
  FreeMachine machine;
  machine.per_host = per_host;
  std::vector<GroupCall> calls;
  machine.price = [&](const GroupCall& call) {
    calls.push_back(call);
    return 0.0;
  };
  predict(plan, machine);
  return calls;
}

// The strides of calls of this kind among so many ranks.
std::set<int> strides(const std::vector<GroupCall>& calls, GroupCall::Kind kind, int ranks) {
  std::set<int> found;
  for (const auto& call : calls) {
    if (call.kind == kind && call.ranks == ranks) found.insert(call.stride);
  }
  return found;
}

TEST(Prediction, ReplicasAreAsFarApartAsShardsAreMany) {
  using enum GroupCall::Kind;
  const std::vector<std::string> settings = {"model.n_layer=4", "parallel.zero=1", "parallel.replicate=2"};
  EXPECT_EQ(strides(priced_calls(predicted_plan(settings)), all_reduce, 2), std::set<int>{4});
  auto exact = settings;
  exact.emplace_back("run.deterministic=layout");
  const auto calls = priced_calls(predicted_plan(exact));
  EXPECT_EQ(strides(calls, all_gather, 2), std::set<int>{4}) << "gradients";
  EXPECT_EQ(strides(calls, all_gather, 4), std::set<int>{1}) << "parameters";
  auto muon = settings;
  muon.emplace_back("optim.name=muon");
  EXPECT_EQ(strides(priced_calls(predicted_plan(muon)), all_gather, 2), std::set<int>{4})
      << "hidden matrices";
}

// The data ranks of two tensor ranks are two apart.
TEST(Prediction, DataRanksAreAsFarApartAsTensorRanksAreMany) {
  using enum GroupCall::Kind;
  for (const char* zero : {"parallel.zero=0", "parallel.zero=1"}) {
    const auto plan = predicted_plan({"model.n_layer=4", "parallel.tensor=2", zero, "optim.name=muon"});
    const auto sample = record_sample(sample_of(plan));
    int over_data = 0;
    for (const auto& call : sample.update_calls) {
      EXPECT_EQ(call.call.stride, call.call.ranks == 4 ? 2 : 1) << call.unit;
      over_data += call.call.ranks == 4 ? 1 : 0;
    }
    EXPECT_GE(over_data, 3) << "of the norm, and of hidden matrices there and back";
  }
}

// Only the embedding's parameters are waited for: those of a block are on their way while the unit before it
// is used, whatever reductions are queued behind them, and those that an update has changed while the next
// step begins.
TEST(Prediction, ParametersAreGatheredBesidePasses) {
  FreeMachine machine;
  machine.beside = true;
  machine.part = 10;
  machine.price = [](const GroupCall& call) {
    return call.kind == GroupCall::Kind::all_gather       ? 1.0
           : call.kind == GroupCall::Kind::reduce_scatter ? 9.0
                                                          : 0.0;
  };
  for (const char* zero : {"parallel.zero=1", "parallel.zero=2", "parallel.zero=3"}) {
    for (const char* tied : {"model.tie_embeddings=true", "model.tie_embeddings=false"}) {
      const auto plan = predicted_plan({"model.n_layer=4", zero, tied});
      EXPECT_EQ(term_of(predict(plan, machine).step, 0, CostTerm::parameters), 1) << zero << ", " << tied;
    }
  }
}

// A chunk still has the activations of its last block where its forward pass is the one before the backward
// pass, whatever is received in between, and whatever other chunks do.
TEST(Prediction, ABlockIsHeldFromAForwardPassToItsBackwardPass) {
  FreeMachine machine;
  machine.held = 1;
  const auto held = [&](std::vector<std::string> settings, int stage) {
    settings.insert(settings.end(), {"model.n_layer=8", "parallel.pipeline=2", "train.recompute=block"});
    return term_of(predict(predicted_plan(settings, 2), machine).step, stage, CostTerm::backward);
  };
  EXPECT_EQ(held({"train.micro_batch=2"}, 1), 8) << "of 8 micro-batches";
  EXPECT_EQ(held({"train.micro_batch=2"}, 0), 0);
  for (const int stage : {0, 1})
    EXPECT_EQ(held({"parallel.schedule=interleaved", "parallel.chunks=2", "train.micro_batch=16"}, stage), 2);
}

// Two hosts have two stages each, on neighbouring ranks.
TEST(Prediction, MessagesMayGoBetweenHosts) {
  FreeMachine machine;
  machine.per_host = 2;
  machine.price = [](const GroupCall& call) {
    return call.kind == GroupCall::Kind::message && call.stride >= 2 ? 1.0 : 0.0;
  };
  const auto plan = predicted_plan({"model.n_layer=4", "parallel.pipeline=4", "train.micro_batch=16"}, 4);
  EXPECT_EQ(predict(plan, machine).step.seconds, 2) << "there and back";

  const auto interleaved = predicted_plan({"model.n_layer=8", "parallel.pipeline=4", "parallel.chunks=2",
                                           "parallel.schedule=interleaved", "train.micro_batch=4"},
                                          4);
  EXPECT_EQ(strides(priced_calls(interleaved, 2), GroupCall::Kind::message, 2), (std::set<int>{1, 2, 3}));
}

// Two stages have three ranks each, a host has four: one rank of the first stage sends within its host, two
// to the other host.
TEST(Prediction, AnyRankOfAStageMaySendToAnotherHost) {
  const auto plan = predicted_plan({"model.n_layer=4", "parallel.pipeline=2", "train.global_batch=12"}, 6);
  EXPECT_EQ(strides(priced_calls(plan, 4), GroupCall::Kind::message, 2), std::set<int>{4});
  EXPECT_EQ(strides(priced_calls(plan, 6), GroupCall::Kind::message, 2), std::set<int>{3});
}

// Groups know of how many ranks they are, since they may lie across two hosts.
TEST(Prediction, GroupsKnowTheWorld) {
  const auto calls =
      priced_calls(predicted_plan({"model.n_layer=4", "parallel.tensor=2", "parallel.pipeline=2"}));
  const auto of_tensor = [](const GroupCall& call) { return call.ranks == 2 && call.stride == 1; };
  ASSERT_GT(std::ranges::count_if(calls, of_tensor), 0);
  for (const auto& call : calls) EXPECT_TRUE(!of_tensor(call) || call.world == 8);
}

// 12 heads on 8 ranks are 1, 2, 1, 2, ...; 25 on 4 are 6, 6, 6, 7.
TEST(Prediction, UnevenSharesAreThoseOfTheRankWithMost) {
  ByteMachine machine;
  struct Case {
    std::vector<std::string> settings;
    std::int64_t heads;
  };
  for (const auto& [settings, heads] :
       {Case{{"parallel.tensor=8", "model.n_head=12", "model.n_embd=96"}, 2},
        Case{{"parallel.tensor=4", "model.n_head=25", "model.n_embd=100"}, 7}}) {
    for (const char* backend : {"train.backend=cpu", "train.backend=cuda"}) {
      auto all = settings;
      all.insert(all.end(), {"model.n_layer=4", backend});
      SCOPED_TRACE(testing::PrintToString(all));
      const auto plan = predicted_plan(all);
      double most = 0;
      for (int tensor = 0; tensor < plan.mesh.tensor; ++tensor) {
        const RankCounts ranks{.world_size = 8, .local_size = 8, .cores = 1};
        const auto memory = estimate_memory(plan, ranks, {.tensor = tensor});
        most = std::max(most, memory.of_device());
      }
      EXPECT_EQ(memory_of_rank(plan, machine), most);
      for (const auto& pass : record_sample(sample_of(plan)).kernels.parts.values) {
        for (const auto& part : pass) {
          for (const auto& kernel : part) {
            if (kernel.kind != Kernel::Kind::attention) continue;
            EXPECT_EQ(kernel.rows, heads);
          }
        }
      }
    }
  }
}

// Later stages may have more blocks, by their cost or by hand, or be the first that are trained.
TEST(Prediction, TheRankThatNeedsMostMayBeInTheMiddle) {
  const std::vector<std::vector<std::string>> all = {
      {"model.n_layer=12"},
      {"model.n_layer=12", "parallel.stages=1,1,1,5,1,1,1,1"},
      {"model.n_layer=12", "parallel.stages=2,2,1,1,2,1,2,1"},
      {"model.n_layer=20", "optim.frozen=embedding, block.[0-9]"}};
  ByteMachine machine;
  for (auto settings : all) {
    settings.insert(settings.end(), {"parallel.pipeline=8", "model.vocab_size=100"});
    const auto plan = predicted_plan(settings);
    double most = 0;
    for (int stage = 0; stage < 8; ++stage) most = std::max(most, memory_of_stage(plan, machine, stage));
    EXPECT_EQ(memory_of_rank(plan, machine), most) << testing::PrintToString(settings);
  }
}

TEST(Prediction, AStageWithoutTrainedUnitsExchangesNothing) {
  ByteMachine machine;
  const auto plan = predicted_plan({"model.n_layer=4", "parallel.engine=gossip", "parallel.pipeline=2",
                                    "parallel.stages=2,2", "optim.frozen=embedding, block.[0-1]"});
  const auto step = predict(plan, machine).step;
  const auto parameters = static_cast<std::size_t>(CostTerm::parameters);
  EXPECT_EQ(step.terms[0][parameters], 0);
  EXPECT_GT(step.terms[1][parameters], 0);
}

// A step may have any number of micro-batches, since no channel is numbered by them.
TEST(StageActions, SendMessagesOfAllMicroBatchesOnOneChannel) {
  auto config = parse_config(kPredicted, "test", std::vector<std::string>{"parallel.pipeline=2"});
  resolve_layout(config, 2);
  const auto plan = make_plan(config);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(plan.model.n_layer + 2));
  const PricedSample sample{
      .plan = plan, .tape = {}, .times = {}, .unit_sizes = sizes, .updated_sizes = sizes};
  constexpr int kLast = (1 << 30) - 1;
  using Kind = Action::Kind;
  const Schedule schedule{ScheduleKind::gpipe,
                          {.stages = 2, .chunks = 1, .micro_batches = kLast + 1},
                          {{{Kind::forward, 0, 0},
                            {Kind::send_output, 0, 0},
                            {Kind::forward, 0, kLast},
                            {Kind::send_output, 0, kLast},
                            {Kind::backward, 0, 0},
                            {Kind::backward, 0, kLast}},
                           {}}};
  FreeMachine machine;
  std::vector<int> sent, received;
  for (const auto& action : actions_of_stage(plan, schedule, sample, sample, machine, 0)) {
    if (action.kind == StepAction::Kind::send) sent.push_back(action.channel);
    if (action.kind == StepAction::Kind::receive) received.push_back(action.channel);
  }
  ASSERT_EQ(sent.size(), 2u);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(sent[0], sent[1]);
  EXPECT_EQ(received[0], received[1]);
  EXPECT_NE(sent[0], received[0]);
}

}  // namespace
}  // namespace shoal
