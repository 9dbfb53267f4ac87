// The dry run of a step, compared with closed forms. Bytes are those of ring algorithms: a rank sends (N - 1)
// / N of a scattered or gathered tensor, and twice that of an all-reduced one.
#include "planner/dry_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "config/layout.h"
#include "config/memory.h"
#include "config/plan.h"
#include "model/unit.h"
#include "parallel/data/shard_plan.h"

namespace shoal {
namespace {

constexpr const char* kConfig = R"(
data.dir = "none"
run.name = "dry"
[model]
n_layer = 4
n_head = 4
n_embd = 64
block_size = 16
vocab_size = 1000
[train]
global_batch = 64
micro_batch = 2
steps = 1
)";

Config config_of(std::vector<std::string> settings, int ranks) {
  auto config = parse_config(kConfig, "test", settings);
  resolve_layout(config, ranks);
  return config;
}

// The only kind of rank, where all ranks are equal.
DryRun::Rank every_rank(const std::vector<std::string>& settings, int ranks) {
  const auto run = dry_run(make_plan(config_of(settings, ranks)));
  EXPECT_EQ(run.ranks.size(), 1u);
  EXPECT_EQ(run.ranks.front().ranks.size(), static_cast<std::size_t>(ranks));
  return run.ranks.front();
}

std::int64_t bytes_of(const DryRun::Rank& rank, const std::string& collective, const std::string& matter) {
  std::int64_t bytes = 0;
  for (const auto& total : rank.traffic) {
    if (total.collective == collective && total.subject == matter) bytes += total.bytes;
  }
  return bytes;
}

// Elements of a unit as ranks exchange them: one piece of whole blocks of 1024 per rank.
std::int64_t padded(const UnitSpec& unit, int ranks) {
  const std::int64_t step = 1024 * ranks;
  return (unit.size + step - 1) / step * step;
}

struct Sizes {
  explicit Sizes(int ranks) {
    const auto units = gpt_units(to_gpt_config(config_of({}, 1).model));
    embedding = padded(units.front(), ranks);
    block = padded(units[1], ranks);
    head = padded(units.back(), ranks);
    all = embedding + 4 * block + head;
  }
  std::int64_t embedding, block, head, all;
};

// (N - 1) / N of `elements`, in bytes.
std::int64_t ring(std::int64_t elements, std::int64_t bytes_each, int ranks) {
  return elements * bytes_each * (ranks - 1) / ranks;
}

TEST(DryRun, ReplicatedRanksReduceEveryGradientOnce) {
  for (const int ranks : {2, 4, 8}) {
    const auto rank = every_rank({"parallel.zero=0"}, ranks);
    EXPECT_EQ(rank.passes, 32 / ranks);
    const auto gradients = 2 * ring(Sizes(ranks).all, 4, ranks);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "gradients"), gradients);
    EXPECT_EQ(bytes_of(rank, "all_gather", "parameters"), 0);
    EXPECT_EQ(rank.links.begin()->first, 1);  // rank 0's next in the ring
    EXPECT_GE(rank.bytes, gradients);
    EXPECT_LT(static_cast<double>(rank.bytes),
              1.01 * static_cast<double>(gradients));  // and the norm, the losses
  }
}

TEST(DryRun, Zero1ScattersGradientsAndGathersParameters) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const auto rank = every_rank({"parallel.zero=1", std::string("train.dtype=") + dtype}, 4);
    EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients"), ring(Sizes(4).all, 4, 4));
    EXPECT_EQ(bytes_of(rank, "all_gather", "parameters"), ring(Sizes(4).all, dtype[0] == 'f' ? 4 : 2, 4));
  }
}

TEST(DryRun, Zero2ScattersGradientsAfterEveryPass) {
  const auto rank = every_rank({"parallel.zero=2"}, 8);
  EXPECT_EQ(rank.passes, 4);
  EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients"), 4 * ring(Sizes(8).all, 4, 8));
  EXPECT_EQ(bytes_of(rank, "all_gather", "parameters"), ring(Sizes(8).all, 4, 8));
}

// In each pass the blocks are gathered for forward and backward, except for the two that are still in memory
// when backward begins. The embedding and the head have buffers of their own and are gathered once per step.
TEST(DryRun, Zero3GathersBlocksForwardAndBackward) {
  const auto rank = every_rank({"parallel.zero=3", "train.global_batch=16"}, 8);
  const Sizes sizes(8);
  EXPECT_EQ(rank.passes, 1);
  EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients"), ring(sizes.all, 4, 8));
  EXPECT_EQ(bytes_of(rank, "all_gather", "parameters"),
            ring(sizes.embedding + sizes.head + (4 + 2) * sizes.block, 4, 8));
}

TEST(DryRun, ReplicatedGroupsReduceShardsAcross) {
  const auto run = dry_run(
      make_plan(config_of({"parallel.zero=2", "parallel.replicate=2", "train.global_batch=16"}, 8)), 4);
  const auto& rank = run.ranks.front();
  const Sizes sizes(8);
  // A reduction within a replica of 4 ranks, then of the shard with the other rank that has it.
  EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients"), ring(sizes.all, 4, 4));
  EXPECT_EQ(bytes_of(rank, "all_reduce", "gradients"), 2 * ring(sizes.all / 4, 4, 2));
  EXPECT_EQ(rank.links.count(1), 1u);
  EXPECT_EQ(rank.links.count(4), 1u);
  // Each replica is on one host: only sums of shards leave it, and a few bytes for the norm and the losses.
  EXPECT_GE(run.host_bytes, 4 * 2 * ring(sizes.all / 4, 4, 2));
  EXPECT_LT(static_cast<double>(run.host_bytes),
            1.05 * 4 * 2 * static_cast<double>(ring(sizes.all / 4, 4, 2)));
}

TEST(DryRun, OrderedSumsSendEveryLeaf) {
  const auto exact = every_rank({"run.deterministic=layout", "parallel.zero=1"}, 8);
  // The two uses of the embedding's matrix have separate sums.
  EXPECT_EQ(bytes_of(exact, "all_to_all", "gradients"), 4 * ring(Sizes(8).all + Sizes(8).embedding, 4, 8));
  const auto narrow = every_rank({"parallel.reduce_dtype=bfloat16", "parallel.zero=0"}, 8);
  EXPECT_EQ(bytes_of(narrow, "all_to_all", "gradients"), ring(Sizes(8).all, 2, 8));
  EXPECT_EQ(narrow.links.size(), 7u);
}

// --- meshes

// The kind of ranks that includes the rank at this coordinate.
DryRun::Rank rank_at(const Config& config, const MeshCoordinate& coordinate) {
  const auto shape = make_plan(config).mesh;
  for (auto& rank : dry_run(make_plan(config)).ranks) {
    for (const int r : rank.ranks) {
      if (coordinate_of(shape, r) == coordinate) return rank;
    }
  }
  ADD_FAILURE() << "no rank at " << to_string(coordinate, shape);
  return {};
}

std::int64_t calls_of(const DryRun::Rank& rank, const std::string& collective, const std::string& matter) {
  std::int64_t calls = 0;
  for (const auto& total : rank.traffic) {
    if (total.collective == collective && total.subject == matter) calls += total.calls;
  }
  return calls;
}

// s b h of a micro-batch, in elements, and rows of it
constexpr std::int64_t kRows = 2 * 16, kActivation = kRows * 64;

// Megatron-LM's analysis (Korthikanti et al. 2022): without sequence parallelism, a block has two all-reduces
// of s b h in forward and two in backward.
TEST(DryRun, TensorRanksReduceTwiceInABlockEachWay) {
  for (const int n : {2, 4}) {
    const auto config = config_of({fmt::format("parallel.tensor={}", n)}, n);
    const auto rank = rank_at(config, {});
    const std::int64_t passes = 32, once = 2 * ring(kActivation, 4, n);
    // There is one more for the embedding's output, and one for the gradient of the head's input.
    EXPECT_EQ(bytes_of(rank, "all_reduce", "activations"), passes * (4 * 2 + 1) * once);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "gradients of activations"), passes * (4 * 2 + 1) * once);
    // The loss sends three numbers per token.
    EXPECT_EQ(bytes_of(rank, "all_reduce", "statistics"), passes * 3 * 2 * ring(kRows, 4, n));
    EXPECT_EQ(calls_of(rank, "all_reduce", "partial gradients"), 0);  // every rank has all tokens
  }
}

// With sequence parallelism, a block has two all-gathers and two reduce-scatters in forward, the same in
// backward, and two more all-gathers in backward for the whole inputs that weight gradients need.
TEST(DryRun, SequenceParallelRanksGatherAndScatter) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const int n = 4;
    const auto config =
        config_of({"parallel.tensor=4", "parallel.sequence=true", std::string("train.dtype=") + dtype}, n);
    const auto rank = rank_at(config, {});
    const std::int64_t passes = 32, once = ring(kActivation, dtype[0] == 'f' ? 4 : 2, n);
    const auto stream = ring(kActivation, 4, n);  // what the embedding makes is the float32 stream
    EXPECT_EQ(bytes_of(rank, "all_gather", "activations"), passes * (4 * 2 + 1) * once);
    EXPECT_EQ(bytes_of(rank, "reduce_scatter", "activations"), passes * (4 * 2 * once + stream));
    EXPECT_EQ(bytes_of(rank, "all_gather", "gradients of activations"), passes * (4 * 4 * once + stream));
    EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients of activations"), passes * (4 * 2 + 1) * once);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "activations"), 0);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "gradients of activations"), 0);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "statistics"), passes * 3 * 2 * ring(kRows, 4, n));
    // Norms' weights and biases, four vectors in a block and two in the head: once per step.
    EXPECT_EQ(calls_of(rank, "all_reduce", "partial gradients"), 5);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "partial gradients"), 2 * ring((4 * 4 + 2) * 64, 4, n));
  }
}

// Recomputation repeats a block's forward pass without its last sum; the last block still has its
// activations.
TEST(DryRun, RecomputingSendsActivationsAgain) {
  const auto rank = [](const char* recompute) {
    return rank_at(
        config_of(
            {"parallel.tensor=4", "parallel.sequence=true", std::string("train.recompute=") + recompute}, 4),
        {});
  };
  const auto none = rank("none"), block = rank("block");
  const auto once = 32 * 3 * ring(kActivation, 4, 4);
  EXPECT_EQ(bytes_of(block, "all_gather", "activations") - bytes_of(none, "all_gather", "activations"),
            2 * once);
  EXPECT_EQ(
      bytes_of(block, "reduce_scatter", "activations") - bytes_of(none, "reduce_scatter", "activations"),
      once);
  EXPECT_EQ(bytes_of(block, "all_gather", "gradients of activations"),
            bytes_of(none, "all_gather", "gradients of activations"));
}

TEST(DryRun, StagesSendStreamsOnAndTheTiedEmbeddingOnce) {
  const auto config = config_of({"parallel.pipeline=4", "parallel.tensor=2", "parallel.sequence=true",
                                 "parallel.data=2", "parallel.zero=1", "train.dtype=bfloat16"},
                                16);
  const auto model = to_gpt_config(config.model);
  const std::int64_t passes = 16, stream = passes * kActivation * 4 / 2;  // a tensor rank has half the tokens
  for (int stage = 0; stage < 4; ++stage) {
    const MeshCoordinate coordinate{.pipeline = stage, .data = 1};
    const auto rank = rank_at(config, coordinate);
    EXPECT_EQ(rank.passes, passes);
    EXPECT_EQ(bytes_of(rank, "send", "output"), stage < 3 ? stream : 0);
    EXPECT_EQ(bytes_of(rank, "send", "gradient of the input"), stage > 0 ? stream : 0);
    const bool has_embedding = stage == 0 || stage == 3;
    EXPECT_EQ(calls_of(rank, "all_reduce", "tied gradients"), has_embedding ? 1 : 0);
    const ShardPlan plan(gpt_units(model, make_plan(config, model).part(coordinate)), 1, 1, 1, 2);
    // Two ranks send half of it twice.
    EXPECT_EQ(bytes_of(rank, "all_reduce", "tied gradients"), has_embedding ? plan.shard_size(0) * 4 : 0);
    EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients"), plan.total() * 4 / 2);
    EXPECT_EQ(calls_of(rank, "all_reduce", "statistics"), stage == 3 ? passes * 3 : 0);
  }
}

TEST(DryRun, ChunksSendMore) {
  const auto config =
      config_of({"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2"}, 2);
  // Three borders between four ranges: two of them behind stage 0.
  EXPECT_EQ(calls_of(rank_at(config, {}), "send", "output"), 2 * 32);
  EXPECT_EQ(calls_of(rank_at(config, {.pipeline = 1}), "send", "output"), 32);
  EXPECT_EQ(calls_of(rank_at(config, {.pipeline = 1}), "send", "gradient of the input"), 2 * 32);
}

// --- gossip

// Bytes that a rank sends in a period to average `elements` parameters: in a round with a group of k, those
// of an all-reduce in a ring of k.
std::int64_t averaged(std::int64_t elements, const std::vector<int>& groups) {
  std::int64_t bytes = 0;
  for (const int k : groups) bytes += 2 * ring(elements, 4, k);
  return bytes;
}

TEST(DryRun, WorkersAverageInEveryRound) {
  const std::int64_t all = Sizes(1).all;  // nothing is cut
  const auto check = [&](int ranks, const std::string& topology, const std::vector<int>& groups) {
    const auto config =
        config_of({"parallel.engine=gossip", "gossip.topology=" + topology, "gossip.local_size=2"}, ranks);
    const auto run = dry_run(make_plan(config));
    EXPECT_EQ(run.steps, std::ssize(groups)) << topology;
    EXPECT_EQ(run.ranks.size(), 1u) << topology;
    const auto rank = run.ranks.front();
    EXPECT_EQ(rank.passes, 32 / ranks);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "averaging"), averaged(all, groups)) << topology;
    EXPECT_EQ(bytes_of(rank, "all_reduce", "gradients"), 0);
    // The only other traffic is a step's loss, norm and signals.
    EXPECT_EQ(bytes_of(rank, "all_reduce", "losses"), std::ssize(groups) * (2 * ring(6, 8, ranks)));
    EXPECT_EQ(rank.bytes, averaged(all, groups) + bytes_of(rank, "all_reduce", "losses"));
    return rank;
  };
  check(4, "complete", {4});
  check(8, "ring", {2, 2});
  // Each of the three other group members receives half of the parameters twice.
  const auto exp = check(8, "exp", {2, 2, 2});
  for (const int to : {2, 4}) EXPECT_EQ(exp.links.at(to), all * 4);
  EXPECT_GT(exp.links.at(1), all * 4);  // and the losses
  check(8, "alternating-exp-ring", {2, 4, 2, 4});
}

TEST(DryRun, BucketsTravelTogether) {
  const auto calls = [](const std::string& mib) {
    const auto config = config_of({"parallel.engine=gossip", "gossip.bucket_mib=" + mib}, 2);
    return calls_of(rank_at(config, {}), "all_reduce", "averaging");
  };
  EXPECT_EQ(calls("25"), 1);
  EXPECT_EQ(calls("0.001"), 6);  // every unit is larger
}

// Two workers of two data, two tensor ranks and two stages each: sums within a worker, averages across.
TEST(DryRun, WorkersOfSeveralRanks) {
  const auto config = config_of({"parallel.engine=gossip", "gossip.worker_size=2", "parallel.zero=1",
                                 "parallel.tensor=2", "parallel.pipeline=2", "train.global_batch=32"},
                                16);
  const auto model = to_gpt_config(config.model);
  for (const int stage : {0, 1}) {
    const MeshCoordinate coordinate{.pipeline = stage, .worker = 1};
    const auto rank = rank_at(config, coordinate);
    EXPECT_EQ(rank.passes, 4);  // of 16 micro-batches
    const ShardPlan plan(gpt_units(model, make_plan(config, model).part(coordinate)), 1, 1, 0, 2);
    EXPECT_EQ(bytes_of(rank, "reduce_scatter", "gradients"), plan.total() * 4 / 2);
    EXPECT_EQ(bytes_of(rank, "all_gather", "parameters"), plan.total() * 4 / 2);
    EXPECT_EQ(bytes_of(rank, "all_reduce", "averaging"), 2 * ring(plan.total() / 2, 4, 2));
    // A worker's eight losses over its eight ranks, and the signals over all ranks.
    EXPECT_EQ(bytes_of(rank, "all_reduce", "losses"), 2 * ring(8, 8, 8) + 2 * ring(6, 8, 16));
  }
  // The first rank of worker 1.
  EXPECT_EQ(rank_at(config, {}).links.count(8), 1u);
}

TEST(DryRun, OneWorkerIsAsAnyRun) {
  for (const std::string ranks : {"1", "4"}) {
    const int n = std::stoi(ranks);
    const auto gossip = every_rank({"parallel.engine=gossip", "gossip.worker_size=" + ranks}, n);
    EXPECT_EQ(gossip.bytes, every_rank({}, n).bytes);
  }
}

// Every product is computed by one rank only.
TEST(DryRun, AMeshSharesTheFlops) {
  const double alone = every_rank({}, 1).flops;
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{"parallel.tensor=4"},
        {"parallel.pipeline=4"},
        {"parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"}}) {
    double all = 0;
    for (const auto& rank : dry_run(make_plan(config_of(mesh, 8))).ranks) {
      all += rank.flops * static_cast<double>(rank.ranks.size());
    }
    EXPECT_NEAR(all / alone, 1, 0.02) << mesh.front();  // the vocabulary is padded on every rank
  }
}

TEST(DryRun, CountsFlops) {
  const auto rank = every_rank({}, 4);
  // Forward, and backward for both operands: 6 per weight of a product and token; 12 T C of attention.
  const double weights = 4 * 12.0 * 64 * 64 + 1008.0 * 64;  // the vocabulary padded to a multiple of 16
  const double tokens = rank.passes * 2 * 16.0;
  EXPECT_DOUBLE_EQ(rank.flops, tokens * (6 * weights + 4 * 12.0 * 16 * 64));
  EXPECT_GT(every_rank({"train.recompute=block"}, 4).flops, rank.flops);
}

TEST(DryRun, OneRankSendsNothing) {
  for (const char* zero : {"parallel.zero=0", "parallel.zero=3"}) EXPECT_EQ(every_rank({zero}, 1).bytes, 0);
}

}  // namespace
}  // namespace shoal
