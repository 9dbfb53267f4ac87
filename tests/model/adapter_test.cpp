// Low-rank adapters and units that are not trained, on one rank: gradients are those of the weights that the
// adapters change, merging changes nothing, and what is frozen has no gradient and no state.
#include <gmock/gmock.h>

#include "model/trainee.h"
#include "ops/make_backend.h"
#include "ops/tolerance.h"

namespace shoal::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

GptConfig with_adapters(double dropout = 0) {
  return {.n_layer = 2,
          .n_head = 3,
          .n_embd = 33,
          .block_size = 17,
          .vocab_size = 61,
          .lora = {.rank = 5, .alpha = 8, .dropout = dropout, .targets = {true, true, true, true}}};
}

std::unique_ptr<Backend> cpu_backend() { return make_backend(BackendKind::cpu, {.threads = 1}); }

Values values_of(const std::vector<NamedValues>& all, std::string_view name) {
  for (const auto& one : all) {
    if (one.name == name) return one.values;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

// B begins with zeros, so that A has no gradient; some steps change that.
std::unique_ptr<Trainee> trained(const GptConfig& config, const TraineeOptions& options = {}) {
  auto trainee = std::make_unique<Trainee>(cpu_backend(), config, options);
  for (int step = 0; step < 5; ++step) trainee->train(random_tokens(config, 2, 7), step, 1e-2);
  return trainee;
}

struct Layer {
  const char* name;
  std::int64_t out, in;
};
constexpr Layer kLayers[] = {
    {"attn.c_attn", 99, 33}, {"attn.c_proj", 33, 33}, {"mlp.c_fc", 132, 33}, {"mlp.c_proj", 33, 132}};

TEST(Adapters, AreOfTheLayersThatAreNamed) {
  for (std::size_t only = 0; only < std::size(kLayers); ++only) {
    auto config = with_adapters();
    config.lora.targets = {};
    config.lora.targets[only] = true;
    std::vector<std::string> found;
    for (const auto& unit : gpt_units(config)) {
      for (const auto& parameter : unit.parameters)
        if (unit.adapter) found.push_back(parameter.name);
    }
    ASSERT_EQ(found.size(), 4u) << kLayers[only].name;
    for (const auto& name : found) EXPECT_THAT(name, HasSubstr(fmt::format(".{}.lora_", kLayers[only].name)));
  }
}

// With W' = W + s B A, dB = s dW A^T and dA = s B^T dW. Each side sums as many products as the micro-batch
// has tokens, in other orders.
TEST(Adapters, HaveTheGradientsOfTheWeightsThatTheyChange) {
  const auto config = with_adapters();
  const auto trainee = trained(config, {.micro_batch = 2});
  trainee->backward(random_tokens(config, 2, 9));
  const auto gradients = trainee->gradients(), parameters = trainee->parameters();
  const auto r = static_cast<std::size_t>(config.lora.rank);
  for (int block = 0; block < config.n_layer; ++block) {
    for (const auto& [name, out, in] : kLayers) {
      const auto stem = fmt::format("transformer.h.{}.{}", block, name);
      const Values dw = values_of(gradients, stem + ".weight"),
                   da = values_of(gradients, stem + ".lora_A.weight"),
                   db = values_of(gradients, stem + ".lora_B.weight"),
                   a = values_of(parameters, stem + ".lora_A.weight"),
                   b = values_of(parameters, stem + ".lora_B.weight");
      const auto rows = static_cast<std::size_t>(out), columns = static_cast<std::size_t>(in);
      Values expected_a(r * columns), expected_b(rows * r);
      for (std::size_t o = 0; o < rows; ++o) {
        for (std::size_t k = 0; k < r; ++k) {
          for (std::size_t i = 0; i < columns; ++i) {
            expected_b[o * r + k] += config.lora.scale() * dw[o * columns + i] * a[k * columns + i];
            expected_a[k * columns + i] += config.lora.scale() * b[o * r + k] * dw[o * columns + i];
          }
        }
      }
      // Sums of random signs: the root of their lengths.
      const double lengths = std::sqrt(3.0 * (34 + 5 + 132));
      EXPECT_GT(norm(da), 0) << stem;
      EXPECT_LT(norm(da - expected_a), 8 * kUnit * lengths * norm(expected_a)) << stem;
      EXPECT_LT(norm(db - expected_b), 8 * kUnit * lengths * norm(expected_b)) << stem;
    }
  }
}

// The loss, and the gradients of what lies before, behind and beside, are those of the merged weights.
TEST(Adapters, ActAsMergedWeights) {
  const auto config = with_adapters();
  const auto apart = trained(config, {.micro_batch = 2});
  const auto batch = random_tokens(config, 2, 9);
  const double loss = apart->evaluate(batch);
  apart->backward(batch);
  const auto expected = apart->gradients(), parameters = apart->parameters();

  auto plain = config;
  plain.lora = {};
  Trainee merged(cpu_backend(), plain, {.micro_batch = 2});
  for (const auto& tensor : merged.engine().state(false, DataEngine::Share::held)) {
    Values w = values_of(parameters, tensor.name);
    const auto stem = tensor.name.substr(0, tensor.name.rfind('.'));
    for (const auto& [name, out, in] : kLayers) {
      if (!tensor.name.ends_with(fmt::format("{}.weight", name))) continue;
      const Values a = values_of(parameters, stem + ".lora_A.weight"),
                   b = values_of(parameters, stem + ".lora_B.weight");
      const auto r = static_cast<std::size_t>(config.lora.rank), columns = static_cast<std::size_t>(in);
      for (std::size_t i = 0; i < w.size(); ++i) {
        for (std::size_t k = 0; k < r; ++k)
          w[i] += config.lora.scale() * b[i / columns * r + k] * a[k * columns + i % columns];
      }
    }
    std::copy(std::begin(w), std::end(w), tensor.data.as<float>());
  }
  merged.engine().state_loaded();
  EXPECT_NEAR(merged.evaluate(batch), loss, 64 * kUnit * loss);
  merged.backward(batch);
  for (const auto& [name, values] : merged.gradients())
    EXPECT_LT(norm(values - values_of(expected, name)), 1e3 * kUnit * norm(values)) << name;
}

class AdaptersOfType : public testing::TestWithParam<Types> {};
INSTANTIATE_TEST_SUITE_P(, AdaptersOfType, testing::ValuesIn(kTypes),
                         [](const auto& test) { return test.param.name(); });

TEST_P(AdaptersOfType, RecomputeGivesTheSameBits) {
  auto config = with_adapters(0.25);
  config.dropout = 0.1;
  config.frozen = {"embedding", "block.*", "head"};
  const auto bits = [&](Recompute recompute) {
    const auto [compute, stream] = GetParam();
    return trained(config, {.compute = compute, .stream = stream, .micro_batch = 2, .recompute = recompute})
        ->state_bits();
  };
  const auto expected = bits(Recompute::none);
  for (const auto recompute : {Recompute::gelu, Recompute::light, Recompute::block})
    EXPECT_TRUE(bits(recompute) == expected) << static_cast<int>(recompute);
}

TEST(Adapters, AreAsOnTheReference) {
  auto config = with_adapters(0.25);
  config.frozen = {"embedding", "block.*", "head"};
  const auto after = [&](std::unique_ptr<Backend> backend) {
    Trainee trainee(std::move(backend), config, {.micro_batch = 2});
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step)
      losses.push_back(trainee.train(random_tokens(config, 2, 7), step, 1e-3));
    return std::pair(losses, trainee.gradient_norm());
  };
  const auto [expected, norm] = after(make_backend(BackendKind::reference, {}));
  const auto [losses, cpu_norm] = after(cpu_backend());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e3 * kUnit * expected[i]);
  EXPECT_NEAR(cpu_norm, norm, 1e4 * kUnit * norm);
}

TEST(Frozen, UnitsKeepTheirBitsAndHaveNoState) {
  auto config = with_adapters();
  config.frozen = {"embedding", "block.*", "head"};
  Trainee trainee(cpu_backend(), config, {.micro_batch = 2});
  const auto before = trainee.parameters();
  for (int step = 0; step < 3; ++step) trainee.train(random_tokens(config, 2, 7), step, 1e-2);
  for (const auto& [name, values] : trainee.parameters()) {
    const bool adapter = name.find(".lora_") != std::string::npos;
    EXPECT_EQ((values_of(before, name) == values).min(), !adapter) << name;
  }
  for (const auto& tensor : trainee.engine().state(true, DataEngine::Share::held)) {
    if (tensor.name.starts_with("optimizer.")) {
      EXPECT_THAT(tensor.name, HasSubstr(".lora_"));
    }
  }
}

// A trained unit's gradient is that of a model that is trained whole, bit for bit.
TEST(Frozen, UnitsDoNotChangeTheGradientsOfOthers) {
  auto config = with_adapters();
  config.lora = {};
  const auto batch = random_tokens(config, 2, 9);
  const auto gradients = [&](std::vector<std::string> frozen) {
    config.frozen = std::move(frozen);
    Trainee trainee(cpu_backend(), config, {.micro_batch = 2});
    trainee.backward(batch);
    return trainee.gradients();
  };
  const auto all = gradients({});
  for (const auto& frozen : {"embedding", "block.0", "block.[01]", "head"}) {
    for (const auto& [name, values] : gradients({frozen}))
      EXPECT_TRUE((values_of(all, name) == values).min()) << name << " with frozen " << frozen;
  }
}

TEST(Adapters, TakeMemoryForDropoutInTrainingAlone) {
  const auto workspace = [](double dropout, bool backward) {
    const auto config = with_adapters(dropout);
    return Gpt::memory(config, {.batch = {2, config.block_size}, .backward = backward}).workspace;
  };
  EXPECT_GT(workspace(0.25, true), workspace(0, true));
  EXPECT_EQ(workspace(0.25, false), workspace(0, false));
}

TEST(Frozen, AllButAdaptersTakesLittleMemory) {
  auto config = with_adapters();
  const EngineOptions options{.micro_batches = 1};
  const auto whole = engine_memory(config, options);
  config.frozen = {"embedding", "block.*", "head"};
  const auto adapters = engine_memory(config, options);
  const auto trained = static_cast<double>(trained_count(gpt_units(config)));
  EXPECT_EQ(adapters.weights, whole.weights);
  EXPECT_LT(static_cast<double>(adapters.gradients), 4 * trained + 2 * 4096 * config.n_layer);
  EXPECT_LT(static_cast<double>(adapters.optimizer), 8 * trained + 2 * 2 * 4096 * config.n_layer);
}

}  // namespace
}  // namespace shoal::test
