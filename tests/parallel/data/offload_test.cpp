// State that rests in the host's memory, or in a file, while a backend computes in a memory of its own: the
// same run, to the bit.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "ops/buffer.h"
#include "ops/cpu/cpu.h"
#include "ops/far_backend.h"
#include "ops/reference/reference.h"
#include "parallel/data/shard_plan.h"
#include "parallel/data/state_stream.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/gossip_run.h"

namespace shoal::test {
namespace {

using Eager = FarBackend::Eager;

// All combinations of eager and late streams: a missing wait between two streams shows in one of them.
std::vector<Eager> all_paces() {
  std::vector<Eager> all;
  for (int i = 0; i < 8; ++i) all.push_back({(i & 1) != 0, (i & 2) != 0, (i & 4) != 0});
  return all;
}
std::string name_of(const Eager& eager) {
  return fmt::format("kernels {} in {} out {}", eager.kernels, eager.in, eager.out);
}

bool all_are(const Buffer& x, double value) {
  const Values values = x.values();
  return values.min() == value && values.max() == value;
}

// --- the stream alone

enum class Resting { pinned, slots };

class StateStreams : public testing::TestWithParam<Resting> {
 protected:
  static constexpr std::int64_t kPiece = 64, kCount = 5 * kPiece + 7;

  // Three tensors that rest.
  struct Rig {
    explicit Rig(Resting resting, const Eager& eager)
        : backend(make_reference_backend(), eager), memory(3 * kCount) {
      Arena pinned{std::span(slots)};
      const auto buffers =
          StreamBuffers::take(near, resting == Resting::slots ? &pinned : nullptr, 3, kPiece);
      stream = std::make_unique<StateStream>(backend, buffers, std::as_bytes(std::span(memory)));
    }
    static constexpr std::size_t kBytes = 2 * 3 * kPiece * sizeof(float);

    Tensor tensor(int i) { return {memory.data() + i * kCount, DType::f32, {kCount}}; }
    float& at(int i, std::int64_t e) { return memory[static_cast<std::size_t>(i * kCount + e)]; }

    FarBackend backend;
    std::vector<float> memory;
    std::vector<std::byte> slots = std::vector<std::byte>(kBytes);
    Arena near{backend, kBytes};
    std::unique_ptr<StateStream> stream;
  };
};

// Chains of operations in which each needs the previous result on the host, over more pieces than there are
// sets of buffers.
TEST_P(StateStreams, KeepsTheOrderOfItsWork) {
  for (const auto& eager : all_paces()) {
    SCOPED_TRACE(name_of(eager));
    Rig rig(GetParam(), eager);
    for (std::int64_t e = 0; e < kCount; ++e) {
      rig.at(0, e) = static_cast<float>(e);
      rig.at(1, e) = static_cast<float>(1000 + e);
    }
    auto& stream = *rig.stream;
    stream.add(rig.tensor(0), rig.tensor(1));  // 1000 + 2e
    stream.convert(rig.tensor(2), rig.tensor(0));
    stream.scale(rig.tensor(1), rig.tensor(2), 0.5f);  // 500 + e
    stream.add(rig.tensor(0), rig.tensor(1));          // 1500 + 3e
    stream.zero(rig.tensor(2));
    const Buffer totals(rig.backend, DType::f64, {1});
    stream.sum_squares(totals, rig.tensor(1));
    stream.settle();
    double squares = 0;
    for (std::int64_t e = 0; e < kCount; ++e) {
      const auto x = static_cast<float>(e);
      ASSERT_EQ(rig.at(0, e), 1500 + 3 * x);
      ASSERT_EQ(rig.at(1, e), 500 + x);
      ASSERT_EQ(rig.at(2, e), 0);
      squares += (500.0 + x) * (500.0 + x);
    }
    EXPECT_EQ(totals.values()[0], squares);  // of integers: exact
  }
}

// A later update does not overwrite tensors that were copied before it, and a copy after an update gets the
// updated values.
TEST_P(StateStreams, BringsWhatIsThere) {
  for (const auto& eager : all_paces()) {
    SCOPED_TRACE(name_of(eager));
    Rig rig(GetParam(), eager);
    for (std::int64_t e = 0; e < kCount; ++e) rig.at(0, e) = 1;
    const Buffer before(rig.backend, DType::f32, {kCount}), after(rig.backend, DType::f32, {kCount});
    const auto arrived = rig.backend.make_event(), also = rig.backend.make_event();
    rig.stream->bring(before, rig.tensor(0), *arrived);
    rig.stream->add(rig.tensor(0), rig.tensor(0));
    rig.stream->bring(after, rig.tensor(0), *also);
    rig.backend.wait(Backend::Stream::kernels, *arrived);
    rig.backend.wait(Backend::Stream::kernels, *also);
    EXPECT_TRUE(all_are(before, 1));
    EXPECT_TRUE(all_are(after, 2));
    // The buffer may still be in use when it is to be filled again.
    rig.backend.scale(after, before, 3);
    rig.stream->bring(before, rig.tensor(0), *arrived);
    rig.backend.wait(Backend::Stream::kernels, *arrived);
    EXPECT_TRUE(all_are(after, 3));
    EXPECT_TRUE(all_are(before, 2));
  }
}

TEST_P(StateStreams, CutsAtWholeBlocks) {
  Rig rig(GetParam(), {});
  for (std::int64_t e = 0; e < kCount; ++e) rig.at(0, e) = static_cast<float>(e);
  const Buffer totals(rig.backend, DType::f64, {8});
  rig.stream->sum_squares(totals, part_of(rig.tensor(0), 0, 8 * 40));
  const auto sums = totals.values();
  for (std::int64_t block = 0; block < 8; ++block) {
    double expected = 0;
    for (std::int64_t e = block * 40; e < (block + 1) * 40; ++e) expected += static_cast<double>(e * e);
    EXPECT_EQ(sums[static_cast<std::size_t>(block)], expected) << block;
  }
}

INSTANTIATE_TEST_SUITE_P(, StateStreams, testing::Values(Resting::pinned, Resting::slots),
                         [](const auto& test) {
                           return test.param == Resting::pinned ? "Pinned" : "ThroughSlots";
                         });

// --- the engine

RanksRun offload_run(const MeshShape& mesh, int zero) {
  RanksRun run;
  run.mesh = mesh;
  run.sequence = mesh.tensor > 1;
  run.steps = 5;
  run.engine = {.grad_clip = 0.1, .zero = zero, .micro_batches = 4};
  return run;
}

// Sets up offload with pieces so small that most tensors have several.
void offload(RanksRun& run, bool on_disk, const Eager& eager = {}) {
  run.engine.on_host = true;
  run.engine.streamed = 1024;
  if (on_disk) run.engine.offload = testing::TempDir();
  run.backend = [eager](int) { return std::make_unique<FarBackend>(make_cpu_backend(1), eager); };
}

void expect_the_same_offloaded(const RanksRun& run, const Eager& eager = {}) {
  const auto expected = bytes_of(train_workers(run));
  for (const bool on_disk : {false, true}) {
    auto other = run;
    offload(other, on_disk, eager);
    EXPECT_TRUE(bytes_of(train_workers(other)) == expected) << (on_disk ? "disk" : "host");
  }
}

struct Case {
  MeshShape mesh;
  int zero = 0;
};

class Offloaded : public testing::TestWithParam<Case> {};

TEST_P(Offloaded, IsTheSameRun) {
  const auto& [mesh, zero] = GetParam();
  for (const bool exact : {false, true}) {
    SCOPED_TRACE(exact ? "layout" : "off");
    auto run = offload_run(mesh, zero);
    run.engine.layout_exact = exact;
    expect_the_same_offloaded(run, {.kernels = false, .in = true, .out = false});
    run.engine.compute = DType::bf16;
    adamw_of(run.engine).accum_steps = 2;
    expect_the_same_offloaded(run, {.kernels = false, .in = false, .out = false});
  }
}

INSTANTIATE_TEST_SUITE_P(, Offloaded,
                         testing::Values(Case{{1, 1, 1}, 0}, Case{{1, 1, 1}, 2}, Case{{1, 1, 1}, 3},
                                         Case{{1, 2, 1}, 0}, Case{{1, 2, 1}, 1}, Case{{1, 2, 1}, 2},
                                         Case{{1, 2, 1}, 3}, Case{{2, 1, 1}, 3}, Case{{1, 1, 2}, 2},
                                         Case{{2, 2, 2}, 3}),
                         [](const auto& test) {
                           const auto& mesh = test.param.mesh;
                           return fmt::format("{}x{}x{}Zero{}", mesh.pipeline, mesh.data, mesh.tensor,
                                              test.param.zero);
                         });

TEST(OffloadedRun, WhicheverLineHurries) {
  auto run = offload_run({}, 3);
  run.recompute = Recompute::block;
  run.engine.compute = DType::bf16;
  const auto expected = train(run).bytes();
  for (const auto& eager : all_paces()) {
    for (const bool on_disk : {false, true}) {
      auto other = run;
      offload(other, on_disk, eager);
      EXPECT_TRUE(train(other).bytes() == expected) << name_of(eager) << (on_disk ? ", disk" : ", host");
    }
  }
}

TEST(OffloadedRun, OfReplicatedGroups) {
  for (const bool exact : {false, true}) {
    auto run = offload_run({.data = 4}, 2);
    run.engine.replicate = 2;
    run.engine.layout_exact = exact;
    expect_the_same_offloaded(run);
  }
}

TEST(OffloadedRun, OfWorkersThatAverage) {
  auto run = gossip_run(make_topology("exp", 2, 1));
  expect_the_same_offloaded(run, {.kernels = false, .in = false, .out = false});
  run.engine.gossip->clip_by_bucket = true;
  run.engine.gossip->bucket_bytes = kTinyBuckets;
  expect_the_same_offloaded(run);
}

// Checkpoints are written from host memory and read into host memory.
TEST(OffloadedRun, StateIsTheHosts) {
  for (const bool on_disk : {false, true}) {
    auto run = offload_run({}, 3);
    offload(run, on_disk, {.kernels = false, .in = false, .out = false});
    std::map<std::string, std::vector<float>> saved;
    train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      rank.step(0, outcome);
      for (const auto& tensor : rank.engine().state(true, DataEngine::Share::held)) {
        ASSERT_FALSE(rank.backend().is_device_memory(tensor.data.data)) << tensor.name;
        const auto* values = tensor.data.as<float>();
        saved[tensor.name].assign(values, values + tensor.data.count());
      }
      rank.step(1, outcome);
    });
    const auto whole = train(run);
    // Another run goes on from there, and ends where the first does.
    const auto resumed = train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
      for (const auto& tensor : rank.engine().state(true, DataEngine::Share::held)) {
        std::ranges::copy(saved.at(tensor.name), tensor.data.as<float>());
      }
      rank.engine().state_loaded();
      for (int step = 1; step < run.steps; ++step) rank.step(step, outcome);
    });
    EXPECT_TRUE(resumed.front().state == whole.state);
  }
}

// A gradient that is not finite is found where it rests.
TEST(OffloadedRun, FindsBadTensors) {
  auto run = offload_run({}, 2);
  offload(run, false);
  train_workers(run, [](RankOfRun& rank, RunOutcome& outcome) {
    rank.step(0, outcome);
    EXPECT_EQ(rank.engine().first_bad_tensor(), "");
    rank.gradient(1, outcome, std::numeric_limits<float>::infinity());
    EXPECT_FALSE(std::isfinite(outcome.norms.back()));
    EXPECT_THAT(rank.engine().first_bad_tensor(), testing::StartsWith("the gradient of "));
    rank.engine().skip_update();
  });
}

// Everything but the stream's buffers and what is in use leaves the backend's memory.
TEST(OffloadedMemory, IsTheHosts) {
  const GptConfig model{.n_layer = 8, .n_head = 2, .n_embd = 64, .block_size = 32, .vocab_size = 100};
  EngineOptions options{.compute = DType::bf16, .zero = 3, .micro_batches = 4};
  options.streamed = 4096;
  const auto with = engine_memory(model, options);
  options.on_host = true;
  const auto host = engine_memory(model, options);
  EXPECT_EQ(host.weights, 0u);
  EXPECT_EQ(host.optimizer, 0u);
  EXPECT_EQ(host.streaming, 2u * 5 * 4096 * 4);
  EXPECT_EQ(host.on_host + host.total() - host.streaming, with.total());
  EXPECT_EQ(host.on_disk, 0u);
  options.offload = "somewhere";
  const auto disk = engine_memory(model, options);
  EXPECT_EQ(disk.on_disk, host.on_host);
  EXPECT_EQ(disk.on_host, disk.streaming);
  EXPECT_EQ(disk.total(), host.total());
}

}  // namespace
}  // namespace shoal::test
