// Tiny GPT-2s against PyTorch in double: logits, loss, every gradient and ten steps of AdamW or Muon with
// clipping. The fixtures are made by make_torch_fixtures.py, which is also where their configurations stand.
//
// A tensor agrees when the norm of its difference is a small part of its own norm. Element by element there
// is no such bound: an element near zero is a difference of larger terms and carries their rounding. An
// answer here is the result of some 20 (logits) to 60 (gradients of the first layer) operations in a row, and
// each adds an independent relative error in norm; independent errors add as their squares.
// * float32, 1e-5: with sums of up to 192 terms and functions good to 4 ulp, an operation adds at most some
//   10 u = 6e-7, so sqrt(60) * 6e-7 = 5e-6. A wrong term, scale or formula shows at 1e-3 and above.
// * bfloat16, 9e-3: an operation rounds its operands or its result, with an error uniform within half a unit
//   of the last place: 2^-8 / (sqrt(3) * 1.44) = 1.6e-3 in the mean square where mantissas are spread evenly
//   over their logarithm. About half of the operations do so: sqrt(30) * 1.6e-3 = 9e-3. With the residual
//   stream and the gradients in bfloat16 all do: sqrt(60) * 1.6e-3 = 1.3e-2.
// The norm of an error of n independent numbers spreads by 1 / sqrt(2 n) of itself, and may be three times
// that larger: 1.2e-2 for a bias of 32 numbers in bfloat16.
#include <fmt/format.h>

#include "checkpoint/safetensors.h"
#include "model/trainee.h"
#include "ops/make_backend.h"

namespace shoal::test {
namespace {

struct Setting {
  const char* fixture;
  const char* backend;
  DType compute;
  DType stream = DType::f32;  // and of gradients
};

class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : file_(SHOAL_SOURCE_DIR "/tests/parity/fixtures/" + name + ".safetensors") {}

  GptConfig config() const {
    const auto integer = [&](const char* key) { return std::stoi(file_.metadata().at(key)); };
    return {.n_layer = integer("n_layer"),
            .n_head = integer("n_head"),
            .n_embd = integer("n_embd"),
            .block_size = integer("block_size"),
            .vocab_size = integer("vocab_size"),
            .bias = file_.metadata().at("bias") == "True",
            .gelu = file_.metadata().at("gelu") == "tanh" ? Gelu::tanh : Gelu::erf,
            .tied = !file_.metadata().contains("untied")};
  }
  OptimizerOptions optimizer() const {
    if (file_.metadata().contains("optimizer")) return MuonConfig{};
    return AdamWConfig{};
  }
  std::int64_t batch() const { return file_.at("tokens").shape[1]; }
  std::int64_t steps() const { return file_.at("tokens").shape[0]; }

  template <typename T>
  std::vector<T> numbers(std::string_view name) const {
    const auto& data = file_.at(name).data;
    std::vector<T> result(data.size() / sizeof(T));
    std::memcpy(result.data(), data.data(), data.size());
    return result;
  }
  Values values(std::string_view name) const {
    const auto stored = numbers<float>(name);
    Values result(stored.size());
    std::copy(stored.begin(), stored.end(), std::begin(result));
    return result;
  }
  Tokens tokens(std::int64_t step) const {
    const auto part = [&](std::string_view name) {
      const auto all = numbers<std::int32_t>(name);
      const auto size = static_cast<std::int64_t>(all.size()) / steps();
      return std::vector<std::int32_t>(all.begin() + step * size, all.begin() + (step + 1) * size);
    };
    return {.tokens = part("tokens"), .targets = part("targets")};
  }

 private:
  SafetensorsFile file_;
};

class TorchParity : public testing::TestWithParam<Setting> {
 protected:
  TorchParity() {
    for (const auto& tensor : trainee_.engine().state(false, DataEngine::Share::held)) {
      trainee_.backend().copy_from_host(tensor.data, fixture_.numbers<float>(tensor.name).data());
    }
    trainee_.engine().state_loaded();
  }

  // The logits of all positions of a batch, computed with the layers of training.
  Values logits(const Tokens& batch) {
    const GptConfig config = fixture_.config();
    const BatchShape shape{fixture_.batch(), config.block_size};
    Backend& backend = trainee_.backend();
    const LayerContext context{backend, trainee_.engine(), config, GetParam().compute};
    Arena arena(backend, std::size_t{16} << 20);
    const auto keep = BlockActivations::take(arena, config, shape, context.compute, GetParam().stream, {});
    const auto work = Workspace::take(arena, config, shape, context.compute, GetParam().stream, {});
    const auto head = Head::Activations::take(arena, config, shape, context.compute, {}, {});
    const Tensor tokens = arena.take(DType::i32, {shape.batch, shape.positions});
    const Tensor stream = arena.take(GetParam().stream, {shape.batch, shape.positions, config.n_embd});
    const Tensor logits = arena.take(DType::f32, {shape.rows(), padded_vocabulary(config)});
    backend.copy_from_host(tokens, batch.tokens.data());
    const auto& units = trainee_.engine().units();
    EmbeddingLayer(units).forward(context, {}, work, stream, tokens);
    for (int layer = 0; layer < config.n_layer; ++layer) {
      const auto sum = Block(units, config, layer).forward(context, {}, keep, work, stream);
      backend.residual_forward(stream, sum.residual, sum.branch, sum.dropout);
    }
    Head(units, config).logits(context, head, stream.reshaped({shape.rows(), config.n_embd}), logits);
    return without_padding(trainee_.floats(logits), config);
  }

  static Values without_padding(const Values& logits, const GptConfig& config) {
    const auto classes = static_cast<std::size_t>(config.vocab_size);
    const auto padded = static_cast<std::size_t>(padded_vocabulary(config));
    return logits[std::gslice(0, {logits.size() / padded, classes}, {padded, 1})];
  }

  double error() const {
    if (GetParam().compute == DType::f32) return 1e-5;
    return GetParam().stream == DType::f32 ? 9e-3 : 1.3e-2;
  }
  // The largest norm of a difference that rounding explains.
  double allowed(const Values& expected) const {
    return error() * (1 + 3 / std::sqrt(2.0 * static_cast<double>(expected.size()))) * norm(expected);
  }

  // The part of what updates have changed, by its sum of magnitudes, that rounding explains. AdamW divides an
  // element g of a gradient by its own size, so an error e of it changes the update by min(1, e / |g|). With
  // normal deviates of size s and r = e / s that is 0.8 r (1 + ln(1 / r)) on average, and its square 1.6 r.
  double allowed_in_updates(const Values& expected) const {
    const double r = error();
    return 0.8 * r * (1 - std::log(r)) + 3 * std::sqrt(1.6 * r / static_cast<double>(expected.size()));
  }

  Fixture fixture_{GetParam().fixture};
  Trainee trainee_{make_backend(backend_kind(GetParam().backend).value(), {.threads = 1}),
                   fixture_.config(),
                   {.compute = GetParam().compute,
                    .stream = GetParam().stream,
                    .gradients = GetParam().stream,
                    .micro_batch = fixture_.batch(),
                    .grad_clip = 1.0,
                    .optimizer = fixture_.optimizer()}};
};

TEST_P(TorchParity, ParametersHaveTheSameNamesAndSizes) {
  for (const auto& unit : trainee_.engine().units()) {
    for (const auto& parameter : unit.parameters) {
      EXPECT_EQ(fixture_.values(parameter.name).size(), parameter.shape.count()) << parameter.name;
    }
  }
}

TEST_P(TorchParity, LogitsAgree) {
  const Values expected = fixture_.values("logits");
  EXPECT_LE(norm(logits(fixture_.tokens(0)) - expected), allowed(expected));
}

TEST_P(TorchParity, GradientsAgree) {
  trainee_.backward(fixture_.tokens(0));
  for (const auto& [name, actual] : trainee_.gradients()) {
    const Values expected = fixture_.values("grad." + name);
    EXPECT_LE(norm(actual - expected), allowed(expected)) << name;
  }
}

TEST_P(TorchParity, TenStepsAgree) {
  const auto losses = fixture_.numbers<double>("losses"), norms = fixture_.numbers<double>("norms");
  for (std::int64_t step = 0; step < fixture_.steps(); ++step) {
    const auto i = static_cast<std::size_t>(step);
    const double loss = trainee_.train(fixture_.tokens(step), step, 1e-3);
    EXPECT_NEAR(loss, losses[i], error() * losses[i]) << "step " << step;
    EXPECT_NEAR(trainee_.gradient_norm(), norms[i], error() * norms[i]) << "step " << step;
  }
  for (const auto& [name, actual] : trainee_.parameters()) {
    Values expected = fixture_.values("change." + name), change = actual - fixture_.values(name);
    // The bias of keys has no gradient but rounding: softmax takes no part of it.
    if (name.ends_with("c_attn.bias")) {
      const std::slice keys(expected.size() / 3, expected.size() / 3, 1);
      expected[keys] = 0.0;
      change[keys] = 0.0;
    }
    EXPECT_LE(std::abs(change - expected).sum(), allowed_in_updates(expected) * std::abs(expected).sum())
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , TorchParity,
    testing::Values(Setting{"bias_tanh", "reference", DType::f32}, Setting{"bias_tanh", "cpu", DType::f32},
                    Setting{"bias_tanh", "cpu", DType::bf16}, Setting{"plain_erf", "reference", DType::f32},
                    Setting{"plain_erf", "cpu", DType::f32}, Setting{"plain_erf", "cpu", DType::bf16},
                    Setting{"untied_erf", "reference", DType::f32}, Setting{"untied_erf", "cpu", DType::f32},
                    Setting{"untied_erf", "cpu", DType::bf16}, Setting{"muon", "reference", DType::f32},
                    Setting{"muon", "cpu", DType::f32}, Setting{"muon", "cpu", DType::bf16},
                    Setting{"bias_tanh", "cpu", DType::bf16, DType::bf16},
                    Setting{"plain_erf", "reference", DType::bf16, DType::bf16}),
    [](const auto& test) {
      return fmt::format("{}_{}_{}{}", test.param.fixture, test.param.backend, name_of(test.param.compute),
                         test.param.stream == DType::f32 ? "" : "_stream");
    });

}  // namespace
}  // namespace shoal::test
