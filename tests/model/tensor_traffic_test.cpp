// The traffic of a rank in a tensor group is the theoretical minimum, and its memory is as announced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "comm/recording.h"
#include "core/error.h"
#include "model/gpt.h"
#include "ops/dry/dry_backend.h"
#include "parallel/data/data_engine.h"

namespace shoal::test {
namespace {

const GptConfig kUnevenTraffic{
    .n_layer = 2, .n_head = 5, .n_embd = 35, .block_size = 12, .vocab_size = 61, .dropout = 0.2};
constexpr GptConfig kDividing{
    .n_layer = 2, .n_head = 8, .n_embd = 128, .block_size = 64, .vocab_size = 1024, .dropout = 0.1};

// A rank of a group in a dry run: nothing is computed or sent.
struct DryRank {
  DryRank(const GptConfig& config, const GptOptions& options, int rank, int size, bool sequence,
          int micro_batches = 1)
      : recording(size, rank), mesh(recording.ranks(), {.tensor = size}), group(mesh.tensor(), sequence) {
    const EngineOptions engine_options{.part = {.tensor = group.tensor_rank(), .chunks = {}},
                                       .compute = options.compute,
                                       .optimizer = {},
                                       .micro_batches = micro_batches};
    engine = std::make_unique<DataEngine>(backend, mesh, config, engine_options);
    const auto before = backend.allocated();
    model.emplace(backend, *engine, config, options, group);
    taken = backend.allocated() - before;
    const Shape shape{options.batch.batch, options.batch.positions};
    batch = {.tokens = {nullptr, DType::i32, shape}, .targets = {nullptr, DType::i32, shape}, .address = {}};
  }

  DryBackend backend;
  Recording recording;
  Mesh mesh;
  TensorGroup group;
  std::unique_ptr<DataEngine> engine;
  std::optional<Gpt> model;
  TokenBatch batch;
  std::size_t taken = 0;
};

struct Sent {
  int calls = 0;
  std::int64_t bytes = 0;
  bool operator==(const Sent&) const = default;
};
void PrintTo(const Sent& sent, std::ostream* out) { *out << sent.calls << " calls, " << sent.bytes << " B"; }
// Bytes by purpose and collective.
using Traffic = std::map<std::pair<std::string, std::string>, Sent>;
Traffic traffic(const Recording& recording) {
  Traffic traffic;
  for (const auto& entry : recording.entries()) {
    if (entry.ranks == 1) continue;  // the engine's, which has one data rank
    auto& sent = traffic[{entry.purpose, entry.collective}];
    ++sent.calls;
    sent.bytes += entry.bytes;
  }
  return traffic;
}

// Shoeybi et al. 2019 and Korthikanti et al. 2022: a block's forward pass and its backward pass each need two
// sums of the stream: all-reduces, or with sequence parallelism an all-gather before and a reduce-scatter
// after the products that need whole rows. A rank keeps only its rows of the norms' outputs, and gathers them
// again in the backward pass.
TEST(TensorTraffic, OfATrainingPassIsWhatMegatronLmSends) {
  constexpr std::int64_t kB = 2, kR = kB * 64, kC = 128;
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const int ranks : {2, 4, 8}) {
      for (const bool sequence : {false, true}) {
        DryRank rank(kDividing, {.batch = {kB, 64}, .compute = compute}, 1, ranks, sequence);
        rank.recording.clear();
        rank.model->train(rank.batch, {nullptr, DType::f64, {1}}, 1);
        // Bytes that a rank sends to pass n elements once around a ring.
        const auto ring = [&](std::int64_t n, DType type) {
          return n * static_cast<std::int64_t>(size_of(type)) * (ranks - 1) / ranks;
        };
        const std::int64_t stream = ring(kR * kC, compute), embedded = ring(kR * kC, DType::f32);
        Traffic expected;
        for (const std::string block : {"block.0", "block.1"}) {
          if (sequence) {
            expected[{"activations of " + block, "all_gather"}] = {2, 2 * stream};
            expected[{"activations of " + block, "reduce_scatter"}] = {2, 2 * stream};
            expected[{"gradients of activations of " + block, "all_gather"}] = {2 + 2, 4 * stream};
            expected[{"gradients of activations of " + block, "reduce_scatter"}] = {2, 2 * stream};
          } else {
            expected[{"activations of " + block, "all_reduce"}] = {2, 2 * 2 * stream};
            expected[{"gradients of activations of " + block, "all_reduce"}] = {2, 2 * 2 * stream};
          }
        }
        if (sequence) {
          expected[{"activations of embedding", "reduce_scatter"}] = {1, embedded};
          expected[{"gradients of activations of embedding", "all_gather"}] = {1, embedded};
          expected[{"activations of head", "all_gather"}] = {1, stream};
          expected[{"gradients of activations of head", "reduce_scatter"}] = {1, stream};
        } else {
          expected[{"activations of embedding", "all_reduce"}] = {1, 2 * embedded};
          expected[{"gradients of activations of head", "all_reduce"}] = {1, 2 * stream};
        }
        // Three numbers per token: the maximum, the sum of exponentials, the target's logit.
        expected[{"statistics of the loss", "all_reduce"}] = {3, 3 * 2 * ring(kR, DType::f32)};
        EXPECT_EQ(traffic(rank.recording), expected) << ranks << " ranks, " << name_of(compute);
      }
    }
  }
}

// Gradients of norms are over a rank's tokens, and are added over the ranks once per step, for any number of
// micro-batches. Those of other common parameters are equal on all ranks.
TEST(TensorTraffic, OfGradientsIsOncePerStepAndOfNormsAlone) {
  constexpr int kRanks = 4;
  for (const bool sequence : {false, true}) {
    DryRank rank(kDividing, {.batch = {2, 64}}, 1, kRanks, sequence, 2);
    rank.recording.clear();
    rank.engine->begin_step(0);
    for (int pass = 0; pass < 2; ++pass) rank.model->train(rank.batch, {nullptr, DType::f64, {1}}, 1);
    rank.engine->measure_gradient();
    Traffic expected;
    const auto add = [&](const std::string& unit, std::int64_t elements) {
      if (!sequence) return;
      expected[{"step 1, partial gradients of " + unit, "all_reduce"}] = {
          1, 2 * elements * 4 * (kRanks - 1) / kRanks};
    };
    add("block.0", 4 * 128);  // two norms' gains and offsets
    add("block.1", 4 * 128);
    add("head", 2 * 128);
    expected[{"step 1, norm of the gradient", "all_reduce"}] = {1,
                                                                2 * 4 * kRanks * 8 * (kRanks - 1) / kRanks};
    auto sent = traffic(rank.recording);
    std::erase_if(sent, [](const auto& entry) { return !entry.first.first.starts_with("step "); });
    EXPECT_EQ(sent, expected);
  }
}

// Recomputing a block repeats the gathers and sums of its branches, except for the last sum, which is the
// next block's input. Recomputing less than a block sends nothing.
TEST(TensorTraffic, OfRecomputeIsThatOfTheForwardPassButForItsEnd) {
  for (const bool sequence : {false, true}) {
    const auto calls = [&](Recompute recompute) {
      DryRank rank(kDividing, {.batch = {2, 64}, .recompute = recompute}, 0, 4, sequence);
      rank.recording.clear();
      rank.model->train(rank.batch, {nullptr, DType::f64, {1}}, 1);
      auto all = traffic(rank.recording);
      return std::pair(all[{"activations of block.0", sequence ? "reduce_scatter" : "all_reduce"}].calls,
                       all[{"activations of block.0", "all_gather"}].calls);
    };
    for (const auto recompute : {Recompute::none, Recompute::gelu, Recompute::light}) {
      EXPECT_EQ(calls(recompute), (std::pair(2, sequence ? 2 : 0)));
    }
    EXPECT_EQ(calls(Recompute::block), (std::pair(3, sequence ? 4 : 0)));
  }
}

// Evaluation sends a fourth number, the most likely class.
TEST(TensorTraffic, OfAnEvaluationSendsTheChoiceToo) {
  DryRank rank(kDividing, {.batch = {2, 64}, .backward = false}, 0, 4, false);
  rank.recording.clear();
  rank.model->evaluate(rank.batch, {nullptr, DType::f64, {1}});
  const auto all = traffic(rank.recording);
  EXPECT_EQ(all.size(), 4);
  EXPECT_EQ(all.at({"statistics of the loss", "all_reduce"}), (Sent{4, 4 * 2 * 2 * 64 * 4 * 3 / 4}));
}

TEST(TensorMemory, OfActivationsIsOneNthUnderSequenceParallelism) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const GptOptions options{.batch = {2, 64}, .compute = compute};
    const auto whole = Gpt::memory(kDividing, options);
    for (const int ranks : {2, 4, 8}) {
      const auto at = [&](bool sequence) {
        return Gpt::memory(kDividing, options, {.rank = ranks - 1, .size = ranks, .sequence = sequence});
      };
      EXPECT_EQ(at(true).blocks * static_cast<std::size_t>(ranks), whole.blocks) << ranks << " ranks";
      EXPECT_EQ(at(true).streams * static_cast<std::size_t>(ranks), whole.streams) << ranks << " ranks";
      // Without sequence parallelism, norms and the stream are whole: per block [R, C] twice and once, and
      // four numbers per token.
      const std::size_t rows = 2 * 64, kept = rows * 128 * (2 * size_of(compute) + 4) + rows * 16;
      EXPECT_EQ(at(false).blocks, 2 * kept + (whole.blocks - 2 * kept) / static_cast<std::size_t>(ranks));
      EXPECT_EQ(at(false).streams, whole.streams);
    }
  }
}

TEST(TensorMemory, IsWhatWasAnnounced) {
  for (const auto& config : {kUnevenTraffic, kDividing}) {
    for (const int ranks : {2, 4}) {
      for (const bool sequence : {false, true}) {
        for (const auto recompute : {Recompute::none, Recompute::light, Recompute::block}) {
          for (int rank = 0; rank < ranks; ++rank) {
            const GptOptions options{.batch = {2, config.block_size}, .recompute = recompute};
            const DryRank dry(config, options, rank, ranks, sequence);
            EXPECT_EQ(dry.taken, Gpt::memory(config, options, dry.group.tensor_rank()).total());
          }
        }
      }
    }
  }
}

TEST(TensorModels, ThatCannotBeAreRefused) {
  const auto make = [](std::int64_t batch, std::int64_t positions, int ranks, bool sequence) {
    return [=] { DryRank(kUnevenTraffic, {.batch = {batch, positions}}, 0, ranks, sequence); };
  };
  const auto says = [](const char* text) { return testing::ThrowsMessage<Error>(testing::HasSubstr(text)); };
  EXPECT_THAT(make(1, 12, 6, false), says("5 attention heads"));
  EXPECT_THAT(make(1, 12, 5, true), says("12 tokens of a micro-batch do not divide"));
  EXPECT_THAT(make(2, 6, 2, true), says("whole blocks of 12 positions"));
  EXPECT_NO_THROW(make(2, 6, 2, false)());
  EXPECT_NO_THROW(make(1, 12, 3, true)());
}

}  // namespace
}  // namespace shoal::test
