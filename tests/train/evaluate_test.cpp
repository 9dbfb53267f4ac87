// Evaluation, compared with the losses of single tokens.
#include "train/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/world.h"
#include "data/temp_folder.h"
#include "ops/make_backend.h"
#include "parallel/data/data_engine.h"
#include "parallel/pipeline/stages.h"

namespace shoal::test {
namespace {

constexpr GptConfig kModel = {
    .n_layer = 2, .n_head = 2, .n_embd = 16, .block_size = 4, .vocab_size = 7, .dropout = 0.5};

// A model on a backend, for batches of `batch` sequences.
struct Tiny {
  // On one rank, or on one of the ranks of a mesh.
  explicit Tiny(std::int64_t batch, Communicator* ranks = nullptr, const MeshShape& shape = {}, int zero = 0,
                bool sequence = false)
      : mesh(ranks ? *ranks : *self, shape),
        part(part_of(mesh, sequence)),
        engine(std::make_unique<DataEngine>(
            *backend, mesh, kModel,
            EngineOptions{.part = part, .optimizer = {}, .training = false, .zero = zero})),
        model(*backend, *engine, mesh, kModel,
              {.batch = {batch, kModel.block_size},
               .backward = false,
               .part = part,
               .stages = shape.pipeline}) {
    engine->initialize(1);
    // Large parameters, so that predictions differ.
    for (const auto& tensor : engine->state(false, DataEngine::Share::held)) {
      auto* x = tensor.data.as<float>();
      for (std::int64_t i = 0; i < tensor.data.count() && tensor.shape[0] > 1; ++i) x[i] *= 10;
    }
    engine->state_loaded();
  }

  std::unique_ptr<Backend> backend = make_backend(BackendKind::cpu, {.threads = 1});
  std::unique_ptr<Communicator> self = make_self_communicator();
  static ModelPart part_of(const Mesh& mesh, bool sequence) {
    const int stages = mesh.shape().pipeline;
    ModelPart part{
        .tensor = {.rank = mesh.coordinate().tensor, .size = mesh.shape().tensor, .sequence = sequence},
        .chunks = {}};
    if (stages > 1)
      part.chunks = {balanced_ranges(kModel, stages)[static_cast<std::size_t>(mesh.coordinate().pipeline)]};
    return part;
  }
  Mesh mesh;
  ModelPart part;
  std::unique_ptr<DataEngine> engine;
  Pipeline model;
};

// The losses at one position of a sequence, with each token of the vocabulary as the target.
std::vector<double> losses_at(Tiny& tiny, std::vector<std::int32_t> tokens, std::size_t place) {
  std::vector<double> losses;
  for (std::int32_t token = 0; token < kModel.vocab_size; ++token) {
    std::vector<std::int32_t> targets(tokens.size(), -1);
    targets[place] = token;
    double loss = 0;
    const Shape shape{1, kModel.block_size};
    tiny.model.evaluate({.tokens = {tokens.data(), DType::i32, shape},
                         .targets = {targets.data(), DType::i32, shape},
                         .address = {.training = false}},
                        {&loss, DType::f64, {1}});
    losses.push_back(loss);
  }
  return losses;
}

class Evaluations : public ::testing::Test {
 protected:
  // 18 tokens: the first and 17 targets, in windows of 4, 4, 4, 4 and 1.
  const std::vector<std::uint16_t> ids_ = {3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 0, 2, 6, 4, 3, 3, 0, 1};
  TempFolder folder_;
  const TokenFile file_{folder_.write_ids("val.bin", ids_), 2, kModel.vocab_size};
};

// Tolerance: the sums have the same float32 losses up to the rounding of products with other shapes. About
// ten products of length at most 64 differ by 10 * 64 * 2^-24 < 5e-5.
TEST_F(Evaluations, OfAWholeSplitCountsEveryTokenOnce) {
  Tiny single(1);
  double loss_sum = 0;
  std::int64_t correct = 0;
  for (std::size_t target = 1; target < ids_.size(); ++target) {
    const std::size_t place = (target - 1) % 4, first = target - 1 - place;
    std::vector<std::int32_t> tokens(4, 0);
    std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(first), place + 1, tokens.begin());
    const auto losses = losses_at(single, tokens, place);
    loss_sum += losses[ids_[target]];
    correct += std::min_element(losses.begin(), losses.end()) - losses.begin() == ids_[target];
  }
  ASSERT_GT(correct, 0);
  ASSERT_LT(correct, 17);

  for (const std::int64_t batch : {1, 2, 5, 8}) {
    Tiny tiny(batch);
    const auto result = Evaluator(*tiny.backend, tiny.model, tiny.mesh, 1).whole(file_);
    EXPECT_EQ(result.tokens, 17);
    EXPECT_EQ(result.correct, correct);
    EXPECT_NEAR(result.loss_sum, loss_sum, 5e-5 * loss_sum);
    // The mean is over tokens, not over batches or windows.
    EXPECT_DOUBLE_EQ(result.loss(), result.loss_sum / 17);
    EXPECT_DOUBLE_EQ(result.accuracy(), static_cast<double>(correct) / 17);
    EXPECT_DOUBLE_EQ(result.perplexity(), std::exp(result.loss_sum / 17));
  }
}

// For any number of sequences: whole micro-batches or not, and less than one micro-batch.
TEST_F(Evaluations, MayEndEarly) {
  Tiny tiny(2);
  Evaluator evaluator(*tiny.backend, tiny.model, tiny.mesh, 1);
  std::vector<std::int64_t> done;
  const auto result = evaluator.whole(file_, 3, [&](std::int64_t n, std::int64_t total) {
    EXPECT_EQ(total, 3);
    done.push_back(n);
    return true;
  });
  EXPECT_FALSE(result.left);
  EXPECT_EQ(result.tokens, 12);
  EXPECT_EQ(done, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(evaluator.whole(file_, 1).tokens, 4);
  EXPECT_EQ(evaluator.whole(file_, 6).tokens, 17);
}

TEST_F(Evaluations, MayBeLeft) {
  Tiny tiny(2);
  Evaluator evaluator(*tiny.backend, tiny.model, tiny.mesh, 1);
  const auto until = [](std::int64_t last) {
    return [last](std::int64_t n, std::int64_t) { return n < last; };
  };
  const auto left = evaluator.whole(file_, 4, until(1));  // after the first micro-batch, of two sequences
  EXPECT_TRUE(left.left);
  EXPECT_EQ(left.tokens, evaluator.whole(file_, 2).tokens);
  EXPECT_FALSE(evaluator.whole(file_, 4, until(4)).left);  // nothing was left out
}

// Also with more ranks than batches, and with weights gathered by all ranks together.
TEST_F(Evaluations, OnAnyNumberOfRanksFindTheSameBits) {
  Tiny alone(2);
  Evaluator evaluator(*alone.backend, alone.model, alone.mesh, 1);
  const auto whole = evaluator.whole(file_), random = evaluator.random("val", file_, 7);
  for (const int ranks : {2, 3, 5}) {
    for (const int zero : {0, 3}) {
      run_threads({.ranks = ranks}, [&](World& world) {
        Tiny tiny(2, &world.ranks, {.data = ranks}, zero);
        std::int64_t last = 0;
        Evaluator part(*tiny.backend, tiny.model, tiny.mesh, 1);
        const auto result = part.whole(file_, 0, [&](std::int64_t done, std::int64_t total) {
          EXPECT_EQ(total, 5);
          last = done;
          return true;
        });
        EXPECT_EQ(last, 5);
        EXPECT_EQ(result.tokens, 17);
        EXPECT_EQ(result.correct, whole.correct);
        EXPECT_EQ(result.loss_sum, whole.loss_sum);
        EXPECT_EQ(part.random("val", file_, 7).loss_sum, random.loss_sum);
      });
    }
  }
}

// Pipeline stages change no product, so losses have the same bits. Tensor parallelism regroups sums: 5e-5, as
// above.
TEST_F(Evaluations, OnAnyMeshCountEveryTokenOnce) {
  Tiny alone(2);
  Evaluator evaluator(*alone.backend, alone.model, alone.mesh, 1);
  const auto whole = evaluator.whole(file_), random = evaluator.random("val", file_, 7);
  const MeshShape meshes[] = {{2, 1, 1}, {2, 2, 1}, {2, 5, 1}, {1, 1, 2}, {1, 3, 2}, {2, 2, 2}};
  for (const auto& shape : meshes) {
    for (const int zero : {0, 3}) {
      for (const bool sequence : {false, true}) {
        if (sequence && shape.tensor == 1) continue;
        run_threads({.ranks = shape.ranks()}, [&](World& world) {
          Tiny tiny(2, &world.ranks, shape, zero, sequence);
          Evaluator part(*tiny.backend, tiny.model, tiny.mesh, 1);
          const auto result = part.whole(file_);
          const double again = part.random("val", file_, 7).loss_sum;
          EXPECT_EQ(result.tokens, 17);
          EXPECT_EQ(result.correct, whole.correct);
          const double bound = shape.tensor > 1 ? 5e-5 : 0;
          EXPECT_NEAR(result.loss_sum, whole.loss_sum, bound * whole.loss_sum);
          EXPECT_NEAR(again, random.loss_sum, bound * random.loss_sum);
        });
      }
    }
  }
}

TEST_F(Evaluations, OfRandomSequencesRepeat) {
  Tiny tiny(3);
  Evaluator evaluator(*tiny.backend, tiny.model, tiny.mesh, 1);
  const auto once = evaluator.random("val", file_, 14), again = evaluator.random("val", file_, 14);
  EXPECT_EQ(once.tokens, 14 * 4);
  EXPECT_EQ(once.loss_sum, again.loss_sum);
  Evaluator other(*tiny.backend, tiny.model, tiny.mesh, 2);
  EXPECT_NE(once.loss_sum, other.random("val", file_, 14).loss_sum);
  EXPECT_NE(once.loss_sum, evaluator.random("train", file_, 14).loss_sum);
}

// The set of sequences is the same, so the sums differ only by the rounding of products with other shapes, as
// above.
TEST_F(Evaluations, OfRandomSequencesAreTheSameWithAnyMicroBatch) {
  Tiny single(1);
  const auto expected = Evaluator(*single.backend, single.model, single.mesh, 1).random("val", file_, 11);
  for (const int ranks : {1, 2, 4}) {
    for (const std::int64_t batch : {1, 2, 4, 8}) {
      run_threads({.ranks = ranks}, [&](World& world) {
        Tiny tiny(batch, &world.ranks, {.data = ranks});
        const auto found = Evaluator(*tiny.backend, tiny.model, tiny.mesh, 1).random("val", file_, 11);
        EXPECT_EQ(found.tokens, 11 * 4);
        EXPECT_EQ(found.correct, expected.correct);
        const double bound = batch == 1 ? 0 : 5e-5;
        EXPECT_NEAR(found.loss_sum, expected.loss_sum, bound * expected.loss_sum) << ranks << " " << batch;
      });
    }
  }
}

}  // namespace
}  // namespace shoal::test
