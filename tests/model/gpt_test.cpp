// Whole models: results do not depend on micro-batches, chunks, recomputation or threads. All tests use one
// thread, except for the one that tests threads.
#include "model/gpt.h"
#include "ops/make_backend.h"

#include <gmock/gmock.h>

#include <set>

#include "model/trainee.h"
#include "ops/reference/reference_backend.h"
#include "ops/tolerance.h"

namespace shoal::test {
namespace {

// Dropout is on, and no size is a multiple of a vector's length.
const GptConfig kConfig{
    .n_layer = 3, .n_head = 3, .n_embd = 33, .block_size = 17, .vocab_size = 61, .dropout = 0.3};

GptConfig without_dropout(GptConfig config) {
  config.dropout = 0;
  return config;
}

class EveryBackend : public testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Backend> backend() {
    return make_backend(backend_kind(GetParam()).value(), {.threads = 1});
  }
};
INSTANTIATE_TEST_SUITE_P(, EveryBackend, testing::Values("reference", "cpu"),
                         [](const auto& test) { return std::string(test.param); });

class EveryType : public testing::TestWithParam<Types> {};
INSTANTIATE_TEST_SUITE_P(, EveryType, testing::ValuesIn(kTypes),
                         [](const auto& test) { return test.param.name(); });

// Two steps, so that the update is covered, and the second step's dropout.
std::vector<std::byte> bits_after_training(Trainee trainee, std::int64_t batch) {
  for (int step = 0; step < 2; ++step) {
    trainee.train(random_tokens(trainee.model().config(), batch, static_cast<std::uint32_t>(step)), step,
                  1e-3);
  }
  return trainee.state_bits();
}

TEST_P(EveryType, RecomputeGivesTheSameBits) {
  for (const double dropout : {0.0, 0.1}) {
    auto config = kConfig;
    config.dropout = dropout;
    const auto run = [&](Recompute recompute, int blocks = -1) {
      return bits_after_training({make_cpu_backend(1),
                                  config,
                                  {.compute = GetParam().compute,
                                   .stream = GetParam().stream,
                                   .gradients = GetParam().stream,
                                   .micro_batch = 2,
                                   .micro_batches = 2,
                                   .recompute = recompute,
                                   .recompute_blocks = blocks}},
                                 4);
    };
    const auto expected = run(Recompute::none);
    for (const auto recompute : {Recompute::gelu, Recompute::light, Recompute::block}) {
      for (const int blocks : {-1, 0, 1, 2}) {
        EXPECT_TRUE(run(recompute, blocks) == expected)
            << name_of(recompute) << " of " << blocks << ", dropout " << dropout;
      }
    }
  }
}

// Rows of C elements: GELU's output is 4 of the compute type, the norms' are 2, of which all blocks share
// one.
TEST_P(EveryType, RecomputeKeepsLess) {
  // A model whose tensors need no padding.
  const GptConfig config{.n_layer = 3, .n_head = 2, .n_embd = 32, .block_size = 16, .vocab_size = 61};
  const auto size = [&](Recompute recompute, int blocks = -1, int activations = 1) {
    return Gpt::memory(config, {.batch = {2, config.block_size},
                                .compute = GetParam().compute,
                                .stream = GetParam().stream,
                                .recompute = recompute,
                                .recompute_blocks = blocks,
                                .activations = activations});
  };
  const std::size_t row = static_cast<std::size_t>(2 * config.block_size * config.n_embd) *
                          size_of(GetParam().compute),
                    layers = static_cast<std::size_t>(config.n_layer);
  const auto none = size(Recompute::none), gelu = size(Recompute::gelu), light = size(Recompute::light);
  EXPECT_EQ(none.blocks - gelu.blocks, 4 * row * layers);
  EXPECT_EQ(gelu.workspace, none.workspace);
  EXPECT_EQ(gelu.blocks - light.blocks, 2 * row * layers);
  EXPECT_EQ(light.workspace - none.workspace, row);
  EXPECT_EQ(size(Recompute::block).blocks, none.blocks / layers);

  EXPECT_EQ(none.blocks - size(Recompute::gelu, 2).blocks, 4 * row * 2);
  EXPECT_EQ(size(Recompute::light, 0).total(), none.total());
  // Two micro-batches keep two blocks each, and share one.
  EXPECT_EQ(size(Recompute::block, 1, 2).blocks, (2 * 2 + 1) * none.blocks / layers);
}

TEST_P(EveryType, AnyNumberOfThreadsGivesTheSameBits) {
  struct {
    GptConfig config;
    std::int64_t batch;
  } const cases[] = {
      {kConfig, 3},
      {{.n_layer = 1, .n_head = 4, .n_embd = 128, .block_size = 64, .vocab_size = 65}, 12},
      {{.n_layer = 1, .n_head = 4, .n_embd = 256, .block_size = 100, .vocab_size = 1003, .dropout = 0.1}, 2},
  };
  for (const auto& [config, batch] : cases) {
    const auto run = [&](int threads) {
      return bits_after_training({make_cpu_backend(threads),
                                  config,
                                  {.compute = GetParam().compute,
                                   .stream = GetParam().stream,
                                   .gradients = GetParam().stream,
                                   .micro_batch = batch}},
                                 batch);
    };
    const auto alone = run(1);
    EXPECT_TRUE(run(2) == alone) << "width " << config.n_embd;
    EXPECT_TRUE(run(3) == alone) << "width " << config.n_embd;
  }
}

// The reference backend computes every row separately and in double, so a row's loss and its part of a
// gradient do not depend on other rows. Sizes of micro-batches only change sums: of losses in double, and of
// gradients in float32, where the part of a micro-batch is added with one rounding (two in the tied
// embedding, which is used twice). With n parts g_i, both sums are within gamma(2 n) * sum |g_i| of the exact
// one, and so are their norms. The two uses of the tied embedding can cancel in g_i. Since every sequence
// contains a token once, the part from the embedding's use has the norm of the positions' gradient p_i, and
// |head's use| <= |g_i| + |p_i|.
TEST(Accumulation, EqualsOneBatchWithinRounding) {
  const std::int64_t batch = 6;
  Tokens all = random_tokens(kConfig, batch);
  for (std::size_t i = 0; i < all.tokens.size(); ++i) all.tokens[i] = static_cast<std::int32_t>(i * 7 % 61);
  all.targets[5] = -1;

  const auto run = [&](std::int64_t micro_batch) {
    Trainee trainee(make_reference_backend(), kConfig,
                    {.micro_batch = micro_batch, .micro_batches = static_cast<int>(6 / micro_batch)});
    const double loss = trainee.backward(all);
    return std::pair(loss, trainee.gradients());
  };
  const auto [whole_loss, whole] = run(batch);

  std::vector<double> magnitudes(whole.size());  // sum of |g_i| over the sequences i
  for (std::int64_t sequence = 0; sequence < batch; ++sequence) {
    Tokens one = all;  // the others' targets do not count, and the scale stays that of the whole batch
    for (std::size_t i = 0; i < one.targets.size(); ++i) {
      if (static_cast<std::int64_t>(i) / kConfig.block_size != sequence) one.targets[i] = -1;
    }
    Trainee trainee(make_reference_backend(), kConfig,
                    {.micro_batch = 1, .micro_batches = static_cast<int>(batch)});
    trainee.backward(one);
    const auto share =
        static_cast<double>(one.targets_that_count()) / static_cast<double>(all.targets_that_count());
    const auto part = trainee.gradients();
    for (std::size_t i = 0; i < part.size(); ++i) magnitudes[i] += share * norm(part[i].values);
    magnitudes[0] += 2 * share * norm(part[1].values);
  }
  ASSERT_EQ(whole[0].name, "transformer.wte.weight");
  ASSERT_EQ(whole[1].name, "transformer.wpe.weight");

  const auto rows = static_cast<std::int64_t>(all.tokens.size());
  for (const std::int64_t micro_batch : {1, 2, 3}) {
    const auto [loss, gradients] = run(micro_batch);
    EXPECT_NEAR(loss, whole_loss, gamma(2 * rows, DType::f64) * whole_loss) << "micro-batch " << micro_batch;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LE(norm(gradients[i].values - whole[i].values), 2 * gamma(2 * batch) * magnitudes[i])
          << whole[i].name << ", micro-batch " << micro_batch;
    }
  }
}

// In the cpu backend, a product with another number of rows may add in another order. The tolerance is that
// of the parity tests for two float32 computations of the same gradient.
TEST(Accumulation, OnTheCpuEqualsTheReference) {
  const Tokens all = random_tokens(kConfig, 6);
  Trainee reference(make_reference_backend(), kConfig, {.micro_batch = 6});
  const double expected_loss = reference.backward(all);
  const auto expected = reference.gradients();
  for (const std::int64_t micro_batch : {1, 2, 3, 6}) {
    Trainee trainee(make_cpu_backend(1), kConfig,
                    {.micro_batch = micro_batch, .micro_batches = static_cast<int>(6 / micro_batch)});
    EXPECT_NEAR(trainee.backward(all), expected_loss, 1e-5 * expected_loss) << "micro-batch " << micro_batch;
    const auto gradients = trainee.gradients();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(norm(gradients[i].values - expected[i].values), 1e-5 * norm(expected[i].values))
          << expected[i].name << ", micro-batch " << micro_batch;
    }
  }
}

TEST(Dropout, ChangesWithTheStepAndIsOffInEvaluation) {
  const Tokens batch = random_tokens(kConfig, 2);
  Trainee trainee(make_cpu_backend(1), kConfig, {.micro_batch = 2});
  Trainee plain(make_cpu_backend(1), without_dropout(kConfig), {.micro_batch = 2});
  const double first = trainee.backward(batch, 0);
  EXPECT_EQ(trainee.backward(batch, 0), first);
  EXPECT_NE(trainee.backward(batch, 1), first);
  EXPECT_NE(plain.backward(batch, 0), first);
  EXPECT_EQ(trainee.evaluate(batch), plain.backward(batch, 0));
}

// Records the site of every dropout mask.
class SiteBackend final : public ReferenceBackend {
 public:
  explicit SiteBackend(std::vector<std::uint32_t>& sites) : sites_(sites) {}
  void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                         std::int64_t first_class, const Dropout& dropout, const Tensor& positions) override {
    sites_.push_back(dropout.site);
    ReferenceBackend::embedding_forward(out, tokens, wte, wpe, first_class, dropout, positions);
  }
  void residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                        const Dropout& dropout) override {
    sites_.push_back(dropout.site);
    ReferenceBackend::residual_forward(out, residual, branch, dropout);
  }
  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                         const Dropout& dropout) override {
    for (std::int64_t h = 0; h < out.shape[2]; ++h) {
      sites_.push_back(attention_site(dropout.site, first_head + h));
    }
    ReferenceBackend::attention_forward(out, lse, qkv, first_head, dropout);
  }

 private:
  std::vector<std::uint32_t>& sites_;
};

// Two dropouts of the same site would drop the same elements.
TEST(Dropout, EverySiteOfTheModelDiffers) {
  std::vector<std::uint32_t> sites;
  Trainee trainee(std::make_unique<SiteBackend>(sites), kConfig);
  trainee.backward(random_tokens(kConfig, 1));
  // The embedding; in each block, attention's heads and the two branches.
  EXPECT_EQ(std::ssize(sites), 1 + kConfig.n_layer * (kConfig.n_head + 2));
  EXPECT_THAT(std::set(sites.begin(), sites.end()), testing::SizeIs(sites.size()));
}

TEST_P(EveryBackend, PaddingOfTheVocabularyStaysZero) {
  const GptConfig config = without_dropout(kConfig);
  for (const DType compute : {DType::f32, DType::bf16}) {
    Trainee trainee(backend(), config, {.compute = compute, .micro_batch = 2});
    const auto expect_zero = [&](const Tensor& padded) {
      const std::int64_t rows = padded_vocabulary(config) - config.vocab_size;
      ASSERT_EQ(rows, 3);
      const Tensor padding = padded.row_range(config.vocab_size, rows);
      std::vector<std::byte> bytes(padding.bytes());
      trainee.backend().copy_to_host(bytes.data(), padding);
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), std::ssize(bytes)) << name_of(compute);
    };
    for (int step = 0; step < 3; ++step) {
      trainee.train(random_tokens(config, 2, static_cast<std::uint32_t>(step)), step, 1e-2);
      const auto wte = EmbeddingParameters(trainee.engine().units()[0]).wte;
      expect_zero(trainee.engine().tied_gradients({})[wte]);
      expect_zero(trainee.engine().weights(0)[wte]);
    }
  }
}

TEST_P(EveryBackend, EvaluationGivesTheLossOfTraining) {
  const GptConfig config = without_dropout(kConfig);
  const Tokens batch = random_tokens(config, 4);
  Trainee trainee(backend(), config, {.micro_batch = 2, .micro_batches = 2});
  Trainee evaluator(backend(), config, {.micro_batch = 2, .backward = false});
  const double loss = trainee.backward(batch);
  EXPECT_EQ(trainee.evaluate(batch), loss);
  EXPECT_EQ(evaluator.evaluate(batch), loss);
}

// 136 rows in three chunks, the last one smaller, compared with one chunk. In the reference backend a row's
// loss does not depend on other rows, so losses have the same bits. Products of the cpu backend may add in
// another order, and gradients are sums over chunks: the tolerance is that of the parity tests.
TEST_P(EveryBackend, LogitsInChunksGiveTheLossAndGradientsOfOne) {
  const Tokens batch = random_tokens(kConfig, 8, 1), other = random_tokens(kConfig, 8, 2);
  const auto trainee = [&](std::int64_t elements) {
    return Trainee(backend(), without_dropout(kConfig), {.micro_batch = 8, .logits = {.elements = elements}});
  };
  auto whole = trainee(1 << 20), chunks = trainee(1);
  const double bound = backend()->name() == "reference" ? 0 : 1e-5;
  const double loss = whole.backward(batch);
  EXPECT_NEAR(chunks.backward(batch), loss, bound * loss);
  const double other_loss = whole.evaluate(other);
  EXPECT_NEAR(chunks.evaluate(other), other_loss, bound * other_loss);
  const auto expected = whole.gradients(), gradients = chunks.gradients();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(norm(gradients[i].values - expected[i].values), 1e-5 * norm(expected[i].values))
        << expected[i].name;
  }
}

// Counts the weights that are taken and not released.
class CountingBackend final : public ReferenceBackend {
 public:
  explicit CountingBackend(std::size_t& taken) : taken_(taken) {}
  void* allocate(std::size_t bytes) override {
    taken_ += bytes;
    return ReferenceBackend::allocate(bytes);
  }
  void release(void* data, std::size_t bytes) override {
    taken_ -= bytes;
    ReferenceBackend::release(data, bytes);
  }

 private:
  std::size_t& taken_;
};

TEST_P(EveryType, MemoryIsWhatWasAnnounced) {
  const auto [compute, stream] = GetParam();
  std::size_t taken = 0;
  CountingBackend backend(taken);
  const auto self = make_self_communicator();
  Mesh mesh(*self);
  for (const bool training : {true, false}) {
    const auto engine = std::make_unique<DataEngine>(
        backend, mesh, kConfig, EngineOptions{.compute = compute, .optimizer = {}, .training = training});
    const std::size_t parameters = taken;
    EXPECT_EQ(parameters, engine_memory(kConfig, {.compute = compute, .training = training}).total());
    for (const auto recompute : {Recompute::none, Recompute::gelu, Recompute::light, Recompute::block}) {
      const GptOptions options{.batch = {2, kConfig.block_size},
                               .compute = compute,
                               .stream = stream,
                               .recompute = recompute,
                               .backward = training};
      const Gpt model(backend, *engine, kConfig, options);
      EXPECT_EQ(taken - parameters, Gpt::memory(kConfig, options).total());
    }
  }
  EXPECT_EQ(taken, 0);
}

TEST_P(EveryBackend, LearnsABatchByHeart) {
  const GptConfig config{.n_layer = 2, .n_head = 2, .n_embd = 32, .block_size = 8, .vocab_size = 11};
  Tokens batch = random_tokens(config, 2);
  // The two sequences have different first tokens, so the model can learn both completely.
  batch.tokens[0] = 0;
  batch.tokens[8] = 1;
  Trainee trainee(backend(), config, {.micro_batch = 2});
  EXPECT_NEAR(trainee.evaluate(batch), std::log(11), 0.2);  // a fresh model knows nothing
  for (int step = 0; step < 80; ++step) trainee.train(batch, step, 1e-2);
  EXPECT_LT(trainee.evaluate(batch), 0.05);

  std::vector<std::int32_t> predictions(batch.targets.size());
  trainee.backend().copy_to_host(predictions.data(), trainee.model().predictions());
  EXPECT_EQ(predictions, batch.targets);
}

}  // namespace
}  // namespace shoal::test
