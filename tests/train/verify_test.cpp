// run.verify: one flipped bit of one product stops the run and is named; without one the run is the same.
#include <fmt/ranges.h>

#include <bit>
#include <memory>

#include "core/host.h"
#include "ops/reference/reference_backend.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

enum class Gradient { weight, input };

// A fault of the processor that this thread runs on: a bit of the first number of a product.
struct FaultyProduct {
  Gradient of = Gradient::weight;
  int before = -1;         // products of this kind until it; negative: there is none
  bool permanent = false;  // all later ones are wrong, too
  int bit = 10;            // low, but not lost where other products are added to the number
};
thread_local FaultyProduct faulty;

class FaultyBackend final : public ReferenceBackend {
 public:
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override {
    ReferenceBackend::linear_backward_input(dx, dy, w);
    computed(Gradient::input, dx);
  }
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy, const Tensor& x,
                              bool overwrite) override {
    ReferenceBackend::linear_backward_weight(dw, dbias, dy, x, overwrite);
    computed(Gradient::weight, dw);
  }

 private:
  static void computed(Gradient what, const Tensor& result) {
    if (what != faulty.of || faulty.before < 0 || faulty.before-- > 0) return;
    auto* first = result.as<float>();
    *first = std::bit_cast<float>(std::bit_cast<std::uint32_t>(*first) ^ (1u << faulty.bit));
    if (faulty.permanent) faulty.before = 0;
  }
};

}  // namespace
}  // namespace shoal::test

// The linker has callers of shoal::make_reference_backend() call this (tests/CMakeLists.txt).
extern "C" std::unique_ptr<shoal::Backend> __wrap__ZN5shoal22make_reference_backendEv() {
  return std::make_unique<shoal::test::FaultyBackend>();
}

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Products of weights' gradients in a backward pass of two blocks: that of the head's matrix, then of each
// block mlp.c_proj, mlp.c_fc, attn.c_proj and attn.c_attn.
constexpr int kOfPass = 9, kOfFc = 2;

class Verify : public TinyRuns {
 protected:
  // A verified step computes another rank's micro-batch before its own. The product counts from its begin.
  struct Fault {
    int rank = 1, step = 3;
    FaultyProduct product;
  };

  void train_with(const Fault& fault, const Settings& settings, int ranks) const {
    const auto given = config(
        "run", with({"run.verify=1", "train.backend=reference", "train.steps=4", "train.global_batch=12",
                     "eval.interval=-1", "checkpoint.interval=0", "model.dropout=0.1", "log.peak_tflops=1"},
                    settings));
    run_threads({.ranks = ranks, .deadline_seconds = 60}, [&](World& world) {
      int step = 0;
      Trainer trainer(given, world, nullptr, [&] {
        const bool here = ++step == fault.step && world.ranks.rank() == fault.rank;
        faulty = here ? fault.product : FaultyProduct{};
      });
      trainer.run();
    });
  }
  std::string error_with(const Fault& fault, const Settings& settings, int ranks) const {
    fs::remove_all(run("run"));
    const auto error = error_of([&] { train_with(fault, settings, ranks); });
    faulty = {};  // one rank runs on this thread
    return error;
  }
  static std::string rank(int number) { return fmt::format("rank {} ({})", number, host_name()); }
};

TEST_F(Verify, AFlippedBitStopsTheRunBeforeTheUpdate) {
  const Settings saves = {"checkpoint.interval=1"};
  EXPECT_EQ(error_with({.product = {.before = kOfPass + kOfFc}}, saves, 2),
            fmt::format("step 3: {} and {} computed different gradients of micro-batch 2 of 6 (samples 2 to "
                        "3): transformer.h.1.mlp.c_fc.weight in block.1 alone differs. One of them is wrong, "
                        "and two cannot tell which: test the memory and the processors of both, or go on "
                        "without them. {} is untouched; resume from it",
                        rank(1), rank(0), checkpoint("run", 2).string()));
  ASSERT_FALSE(fs::exists(checkpoint("run", 3)));
  train_with({}, with(saves, {"init.from=resume"}), 2);
  EXPECT_TRUE(fs::exists(checkpoint("run", 4)));
  // Rank 0's micro-batch on rank 1.
  EXPECT_THAT(
      error_with({.product = {.before = 0}}, {}, 2),
      AllOf(StartsWith(fmt::format("step 3: {} and {} computed different gradients of micro-batch 1 of "
                                   "6 (samples 0 to 1): transformer.wte.weight in embedding alone",
                                   rank(0), rank(1))),
            HasSubstr("Nothing was saved yet; start the run again")));
}

TEST_F(Verify, AThirdRankTellsWhichOneIsWrong) {
  for (const int ranks : {3, 4}) {
    for (const int before : {kOfFc, kOfPass + kOfFc}) {
      const auto error = error_with({.product = {.before = before, .permanent = ranks == 4}}, {}, ranks);
      EXPECT_THAT(error, AllOf(HasSubstr("computed different gradients of micro-batch"),
                               HasSubstr(fmt::format(", so {} is wrong: test its memory", rank(1)))));
    }
  }
}

TEST_F(Verify, FaultsAreFoundInEveryLayout) {
  const std::pair<int, Settings> layouts[] = {
      {2, {"parallel.zero=1"}},
      {2, {"parallel.zero=2"}},
      {4, {"parallel.zero=3", "parallel.replicate=2", "train.recompute=block"}},
      {2, {"run.deterministic=layout"}},
      {2, {"parallel.zero=3", "run.deterministic=layout", "parallel.reduce_dtype=bfloat16"}},
      {4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1"}},
      {4, {"parallel.engine=gossip", "gossip.worker_size=2"}}};
  for (const auto& [ranks, settings] : layouts) {
    EXPECT_THAT(error_with({.rank = ranks - 1, .product = {.before = kOfPass + kOfFc}}, settings, ranks),
                AllOf(HasSubstr("step 3: rank"), HasSubstr("computed different gradients"),
                      HasSubstr(": transformer.h.1.mlp.c_fc.weight in block.1 alone differs")))
        << fmt::format("{}", fmt::join(settings, " "));
  }
}

// The last stage's gradient of its input is wrong, and with it the gradients of the first stage.
TEST_F(Verify, AFaultIsNamedWhereItsStageIs) {
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    EXPECT_THAT(
        error_with({.rank = 3, .product = {.of = Gradient::input, .before = 0, .bit = 23}},
                   {"parallel.pipeline=2", "parallel.schedule=" + schedule}, 4),
        StartsWith(fmt::format("step 3: ranks 0 ({0}), 2 ({0}) and ranks 1 ({0}), 3 ({0}) computed different "
                               "gradients of micro-batch 1 of 6 (samples 0 to 1): transformer.ln_f.weight in "
                               "head is the first of ",
                               host_name())));
  }
}

// The processor that errs is the only one: it has to err only now and then.
TEST_F(Verify, OneRankRepeatsItsOwnMicroBatch) {
  EXPECT_THAT(error_with({.rank = 0, .product = {.before = kOfFc}}, {}, 1),
              AllOf(StartsWith(fmt::format(
                        "step 3: {} computed two different gradients of micro-batch 1 of 6", rank(0))),
                    HasSubstr("It errs now and then")));
  EXPECT_THAT(log_of("run"), HasSubstr("run.verify: one data rank computes its own micro-batch again"));
}

TEST_F(Verify, OtherStepsAreNotVerified) {
  train_with({.step = 3, .product = {.before = kOfFc}}, {"run.verify=2"}, 2);
  EXPECT_THAT(error_with({.step = 4, .product = {.before = kOfFc}}, {"run.verify=2"}, 2),
              StartsWith("step 4: "));
}

TEST_F(Verify, TheRunIsTheSame) {
  const std::pair<int, Settings> layouts[] = {
      {1, {"train.spike_zscore=0.5", "train.spike_window=8", "train.on_bad_step=skip"}},
      {2, {"parallel.zero=2", "train.dtype=bfloat16"}},
      {3, {"parallel.zero=3", "run.deterministic=layout", "checkpoint.memory=true"}},
      {3, {"lora.rank=2", "parallel.zero=1"}},
      {4, {"parallel.pipeline=2", "parallel.zero=3", "train.recompute=light"}},
      {4, {"parallel.tensor=2", "model.tie_embeddings=false"}},
      {4, {"parallel.engine=gossip", "gossip.worker_size=2", "parallel.zero=1"}}};
  for (const auto& [ranks, given] : layouts) {
    const auto settings =
        with({"train.global_batch=16", "model.dropout=0.1", "eval.interval=4", "eval.at_start=false",
              "checkpoint.interval=0", "train.steps=8", "log.peak_tflops=1"},
             given);
    const auto name = given.front();
    train(name, settings, ranks);
    train("verified", with(settings, {"run.verify=1"}), ranks);
    EXPECT_EQ(tensors("verified", 8), tensors(name, 8)) << name;
    EXPECT_EQ(reproducible_metrics("verified"), reproducible_metrics(name)) << name;
    fs::remove_all(run("verified"));
  }
}

}  // namespace
}  // namespace shoal::test
