// Pipelines of any shape compute the same as one stage, in the memory that they announce.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "core/clock.h"
#include "core/error.h"
#include "ops/cpu/cpu.h"
#include "ops/reference/reference_backend.h"
#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

RanksRun of_stages(int stages, int chunks, ScheduleKind schedule) {
  RanksRun run;
  run.mesh.pipeline = stages;
  run.chunks = chunks;
  run.schedule = schedule;
  run.model.n_layer = 12;
  run.engine = {.grad_clip = 0.1, .layout_exact = true};
  run.steps = 3;
  run.evaluate_every = 1;
  run.lr = 1e-3;
  return run;
}

// Every pipeline of up to four stages, in every schedule.
std::vector<RanksRun> pipelines() {
  std::vector<RanksRun> all;
  for (int stages = 2; stages <= 4; ++stages) {
    for (const auto& scheme : schedule_schemes()) {
      for (int chunks = 1; chunks <= (scheme.takes_chunks ? 3 : 1); ++chunks)
        all.push_back(of_stages(stages, chunks, scheme.kind));
    }
  }
  return all;
}

std::string description(const RanksRun& run) {
  return fmt::format("{}, {} stages, {} chunks, {} micro-batches, {} data ranks", name_of(run.schedule),
                     run.mesh.pipeline, run.chunks, run.engine.micro_batches, run.mesh.data);
}

// Fewer micro-batches than stages, equally many, and more, with an evaluation between any two steps. The
// executor fails when it needs more buffers than the schedule announced.
TEST(Pipeline, AnyNumberOfMicroBatchesEqualsOneStage) {
  for (const int micro_batches : {1, 2, 3, 7}) {
    auto one = of_stages(1, 1, ScheduleKind::one_f_one_b);
    one.engine.micro_batches = micro_batches;
    const auto expected = train(one).bytes();
    for (auto run : pipelines()) {
      run.engine.micro_batches = micro_batches;
      run.recompute = run.mesh.pipeline % 2 ? Recompute::block : Recompute::none;
      if (micro_batches == 2 || micro_batches == 3) {
        run.recompute = micro_batches == 2 ? Recompute::light : Recompute::block;
        for (int range = 0; range < run.mesh.pipeline * run.chunks; ++range)
          run.recompute_blocks.push_back(range % 2);
      }
      EXPECT_TRUE(train(run).bytes() == expected) << description(run);
    }
  }
}

TEST(Pipeline, ManyMicroBatchesEqualOneStage) {
  auto one = of_stages(1, 1, ScheduleKind::one_f_one_b);
  one.engine.micro_batches = 33;
  const auto expected = train(one).bytes();
  for (auto run : pipelines()) {
    if (run.mesh.pipeline == 2) continue;
    run.engine.micro_batches = 33;
    EXPECT_TRUE(train(run).bytes() == expected) << description(run);
  }
}

// One data rank has four of 7 micro-batches, the other three and a pass whose targets are ignored.
TEST(Pipeline, DataRanksMayHaveDifferentNumbersOfMicroBatches) {
  auto one = of_stages(1, 1, ScheduleKind::one_f_one_b);
  one.engine.micro_batches = 7;
  one.engine.compute = one.stream = DType::bf16;
  const auto expected = train(one).bytes();
  for (auto run : pipelines()) {
    run.engine.micro_batches = 7;
    run.engine.compute = run.stream = DType::bf16;
    run.engine.zero = run.mesh.pipeline - 1;
    run.mesh.data = 2;
    EXPECT_TRUE(train(run).bytes() == expected) << description(run);
  }
}

// Without updates the two runs differ only by dropout.
TEST(Pipeline, DropoutActsInTrainingAlone) {
  for (const int stages : {1, 3}) {
    auto run = of_stages(stages, 1, ScheduleKind::one_f_one_b);
    run.lr = 0;
    const auto with_dropout = train(run);
    run.model.dropout = 0;
    const auto without = train(run);
    EXPECT_NE(with_dropout.losses, without.losses);
    EXPECT_EQ(with_dropout.evaluations, without.evaluations);
  }
}

TEST(Pipeline, MoreStagesThanBlocksAreRefused) {
  auto run = of_stages(4, 1, ScheduleKind::gpipe);
  run.model.n_layer = 3;
  EXPECT_THAT([&] { train(run); },
              ThrowsMessage<UserError>(HasSubstr("3 blocks cannot be cut into 4 ranges")));
}

// Counts the weights that are taken and not released.
class CountingBackend final : public ReferenceBackend {
 public:
  void* allocate(std::size_t bytes) override {
    taken += bytes;
    return ReferenceBackend::allocate(bytes);
  }
  void release(void* data, std::size_t bytes) override {
    taken -= bytes;
    ReferenceBackend::release(data, bytes);
  }
  std::size_t taken = 0;
};

TEST(Pipeline, MemoryIsWhatWasAnnounced) {
  auto runs = pipelines();
  runs.push_back(of_stages(1, 1, ScheduleKind::gpipe));
  for (auto run : runs) {
    SCOPED_TRACE(description(run));
    const bool odd = run.mesh.pipeline % 2;
    run.mesh.tensor = run.mesh.pipeline < 4 ? 2 : 1;
    run.mesh.data = run.mesh.pipeline == 4 ? 2 : 1;
    run.sequence = odd;
    run.engine.zero = run.chunks;
    run.engine.micro_batches = 5;
    run.engine.compute = odd ? DType::bf16 : DType::f32;
    if (run.mesh.pipeline < 4) run.stream = run.engine.compute;
    run_threads({.ranks = run.mesh.ranks(), .deadline_seconds = 60}, [&](World& world) {
      Mesh mesh(world.ranks, run.mesh);
      CountingBackend backend;
      for (const bool training : {true, false}) {
        auto engine_options = run.engine_options(mesh.coordinate());
        engine_options.training = training;
        const auto engine = std::make_unique<DataEngine>(backend, mesh, run.model, engine_options);
        const auto state = backend.taken;
        EXPECT_EQ(state, engine_memory(run.model, engine_options, run.mesh.data).total());
        for (const auto recompute : {Recompute::none, Recompute::light, Recompute::block}) {
          auto options = run.pipeline_options(mesh.coordinate());
          options.backward = training;
          options.recompute = recompute;
          options.recompute_blocks = {1};
          const Pipeline pipeline(backend, *engine, mesh, run.model, options);
          EXPECT_EQ(backend.taken - state,
                    Pipeline::memory(run.model, options, mesh.coordinate().pipeline).total());
        }
      }
      EXPECT_EQ(backend.taken, 0);
    });
  }
}

TEST(Pipeline, EvaluatesAlikeWithoutBackwardPasses) {
  for (auto run : pipelines()) {
    SCOPED_TRACE(description(run));
    const auto evaluation = [&](bool trains) {
      run.trains = trains;
      RunOutcome outcome;
      run_threads({.ranks = run.mesh.ranks(), .deadline_seconds = 60}, [&](World& world) {
        RankOfRun rank(run, world.ranks);
        RunOutcome mine;
        rank.evaluate(0, mine);
        if (world.ranks.rank() == 0) outcome = mine;
      });
      return outcome.bytes();
    };
    EXPECT_EQ(evaluation(false), evaluation(true));
  }
}

// 1F1B keeps as many activations as there are stages from here on, GPipe those of all micro-batches.
TEST(Pipeline, OneForwardOneBackwardNeedsNoMoreForMoreMicroBatches) {
  const auto blocks = [](ScheduleKind kind, int micro_batches, int stage) {
    auto run = of_stages(4, 1, kind);
    run.engine.micro_batches = micro_batches;
    return Pipeline::memory(run.model, run.pipeline_options({.pipeline = stage}), stage).blocks;
  };
  for (int stage = 0; stage < 4; ++stage) {
    const auto one = blocks(ScheduleKind::one_f_one_b, 1, stage);
    EXPECT_EQ(blocks(ScheduleKind::one_f_one_b, 64, stage), static_cast<std::size_t>(4 - stage) * one);
    EXPECT_EQ(blocks(ScheduleKind::gpipe, 64, stage), 64 * one);
  }
}

// Forwards all calls to another store, and fails at one of them.
class FailingStore final : public UnitStore {
 public:
  FailingStore(UnitStore& store, int calls) : store_(store), left_(calls) {}
  const std::vector<UnitSpec>& units() const override { return store_.units(); }
  UnitView weights(int unit) override {
    if (left_-- == 0) fail("no luck with unit {}", unit);
    return store_.weights(unit);
  }
  void release(int unit) override { store_.release(unit); }
  UnitView gradients(int unit, std::span<const ElementRange> products) override {
    return store_.gradients(unit, products);
  }
  UnitView tied_gradients(std::span<const ElementRange> products) override {
    return store_.tied_gradients(products);
  }
  void gradients_ready(int unit) override { store_.gradients_ready(unit); }

 private:
  UnitStore& store_;
  int left_;
};

// One step in which a rank fails.
void fail_in_a_step(const RanksRun& run, int failing, int calls) {
  run_threads({.ranks = run.mesh.ranks(), .deadline_seconds = 60}, [&](World& world) {
    Mesh mesh(world.ranks, run.mesh);
    const auto backend = make_cpu_backend(1);
    const auto engine =
        std::make_unique<DataEngine>(*backend, mesh, run.model, run.engine_options(mesh.coordinate()));
    FailingStore store(*engine, world.ranks.rank() == failing ? calls : -1);
    Pipeline pipeline(*backend, store, mesh, run.model, run.pipeline_options(mesh.coordinate()));
    engine->initialize(1);
    const Buffer tokens(*backend, DType::i32, {1, run.model.block_size});
    const Buffer losses(*backend, DType::f64, {engine->passes()});
    const Scalar<std::uint32_t> step(*backend, 0);
    const std::vector<TokenBatch> batches(
        static_cast<std::size_t>(engine->passes()),
        TokenBatch{.tokens = tokens, .targets = tokens, .address = {.step = step.get()}});
    engine->begin_step(0);
    pipeline.train(batches, losses, 1);
    engine->measure_gradient();
  });
}

TEST(Pipeline, ARankThatFailsInAStepStopsAll) {
  auto run = of_stages(3, 1, ScheduleKind::one_f_one_b);
  run.mesh.tensor = 2;
  run.engine.micro_batches = 8;
  for (const int failing : {0, 3, 5}) {
    for (const int calls : {0, 5, 30}) {
      const Stopwatch watch;
      EXPECT_THAT([&] { fail_in_a_step(run, failing, calls); },
                  ThrowsMessage<Error>(HasSubstr(fmt::format("rank {}: no luck with unit", failing))));
      EXPECT_LT(watch.seconds(), 5);
    }
  }
}

}  // namespace
}  // namespace shoal::test
