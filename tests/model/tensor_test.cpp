// A tensor group computes the same as one rank.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "comm/world.h"
#include "model/boxes.h"
#include "model/trainee.h"
#include "ops/make_backend.h"
#include "ops/tolerance.h"

namespace shoal::test {
namespace {

// Five heads, 35 channels, 140 hidden ones and 61 classes divide by nothing; a quarter of the tokens is no
// whole sequence.
const GptConfig kUnevenHeads{
    .n_layer = 2, .n_head = 5, .n_embd = 35, .block_size = 12, .vocab_size = 61, .dropout = 0.2};
const GptConfig kEvenHeads{.n_layer = 2,
                           .n_head = 4,
                           .n_embd = 64,
                           .block_size = 8,
                           .vocab_size = 64,
                           .dropout = 0.2,
                           .bias = false,
                           .gelu = Gelu::erf};
constexpr std::int64_t kRows = 24;

struct Setting {
  const char* backend = "cpu";
  DType compute = DType::f32, stream = DType::f32;
  GptConfig config = kUnevenHeads;
  int ranks = 1;
  bool sequence = false;
  Recompute recompute = Recompute::none;
};

GptOptions options_of(const Setting& setting) {
  return {.batch = {kRows / setting.config.block_size, setting.config.block_size},
          .compute = setting.compute,
          .stream = setting.stream,
          .recompute = setting.recompute};
}

// The results of a rank: of a forward and backward pass, and of an evaluation.
struct Outcome {
  double loss = 0, evaluated = 0;
  std::vector<std::int32_t> predictions;
  std::vector<UnitSpec> units;
  std::vector<std::vector<float>> gradients;  // of the units

  bool operator==(const Outcome& other) const {
    return loss == other.loss && evaluated == other.evaluated && predictions == other.predictions &&
           gradients == other.gradients;
  }
};

Outcome run_rank(Communicator& ranks, const Setting& setting, Tokens batch) {
  const auto backend = make_backend(backend_kind(setting.backend).value(), {.threads = 1});
  const auto options = options_of(setting);
  Mesh mesh(ranks, {.tensor = ranks.size()});
  const TensorGroup group(mesh.tensor(), setting.sequence);
  const auto engine =
      std::make_unique<DataEngine>(*backend, mesh, setting.config,
                                   EngineOptions{.part = {.tensor = group.tensor_rank(), .chunks = {}},
                                                 .compute = setting.compute,
                                                 .optimizer = {}});
  engine->initialize(1337);
  // Parameters large enough that no branch is negligible in the residual stream; biases are not zero.
  for (const auto& tensor : engine->state(false, DataEngine::Share::held)) {
    for (std::int64_t i = 0; i < tensor.data.count(); ++i) {
      auto& x = tensor.data.as<float>()[i];
      const auto place = static_cast<float>(tensor.box.offset[0] + tensor.first + i);
      x = tensor.shape.rank() == 1 ? x + 0.3f * std::sin(place) : 5 * x;
    }
  }
  engine->state_loaded();
  Gpt model(*backend, *engine, setting.config, options, group);

  static constexpr std::uint32_t kStep = 3;
  const Shape shape{options.batch.batch, options.batch.positions};
  const TokenBatch tokens{.tokens = {batch.tokens.data(), DType::i32, shape},
                          .targets = {batch.targets.data(), DType::i32, shape},
                          .address = {.seed = 7, .step = &kStep, .first_sample = 5}};
  Outcome outcome;
  engine->begin_step(3);
  model.train(tokens, {&outcome.loss, DType::f64, {1}}, 1.0f / kRows);
  outcome.units = engine->units();
  for (int u = 0; u < static_cast<int>(outcome.units.size()); ++u) {
    const Tensor flat = engine->gradients(u, {}).flat;
    outcome.gradients.emplace_back(flat.as<float>(), flat.as<float>() + flat.count());
  }
  model.evaluate(tokens, {&outcome.evaluated, DType::f64, {1}});
  outcome.predictions.resize(kRows);
  backend->copy_to_host(outcome.predictions.data(), model.predictions());
  return outcome;
}

Tokens some_batch(const GptConfig& config) {
  Tokens batch = random_tokens(config, kRows / config.block_size);
  batch.targets[4] = batch.targets[17] = -1;
  return batch;
}

std::vector<Outcome> run_group(const Setting& setting) {
  const Tokens batch = some_batch(setting.config);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.ranks));
  run_threads({.ranks = setting.ranks}, [&](World& world) {
    outcomes[static_cast<std::size_t>(world.ranks.rank())] = run_rank(world.ranks, setting, batch);
  });
  return outcomes;
}

// Every gradient of the whole model, from the boxes that the ranks have.
std::map<std::string, Values> whole_gradients(const std::vector<Outcome>& ranks, bool sequence) {
  std::map<std::string, Values> whole;
  for (const auto& rank : ranks) {
    for (std::size_t u = 0; u < rank.units.size(); ++u) {
      for (const auto& parameter : rank.units[u].parameters) {
        auto& values = whole[parameter.name];
        if (values.size() == 0) values.resize(static_cast<std::size_t>(parameter.shape.count()));
        const bool add = !parameter.placement.replicated() || (parameter.placement.partial && sequence);
        const float* own = rank.gradients[u].data() + parameter.offset;
        for (const auto& box : parameter.boxes()) {
          for_elements(parameter, box, [&](std::int64_t e) {
            auto& value = values[static_cast<std::size_t>(e)];
            if (add || &rank == ranks.data()) {
              value += *own++;
            } else {
              EXPECT_EQ(*own++, value) << parameter.name << ", which all ranks have";
            }
          });
        }
      }
    }
  }
  return whole;
}

// --- against one rank
//
// A gradient is the result of about 11 operations forward and 12 backward through each block, 3 each through
// the head, and one that sums over tokens. Independent relative errors in norm add as their squares. The mean
// square errors of one operation are:
// * rounding a stored result to a type with unit roundoff u: r(u) = u / (sqrt(3) * 1.44), an error uniform
//   within half a unit of the last place, mantissas being spread evenly over their logarithm. In float32 all
//   operations do so, in bfloat16 half of them; the rest, residual stream and statistics, stay float32. With
//   the stream in bfloat16 nearly all do.
// * a sum of K terms in float32, of which the first k come to about sqrt(k / K) of the result: r sqrt(K / 2).
//   The longest have the 4 C hidden channels; the reference backend sums in double.
// One rank has one such error per operation. In a group of N ranks, a product is at most N partial results of
// the size of the whole, each with a rounding: N times the squares. The two computations differ by the root
// of the sum, and none of about thirty gradients by more than twice that.
double rounding(DType type) { return unit_roundoff(type) / (std::sqrt(3.0) * 1.44); }
double error_after(int operations, const Setting& setting) {
  const double sums = std::string(setting.backend) == "reference" ? 0 : 2.0 * setting.config.n_embd;
  const double stored = std::pow(rounding(setting.compute), 2) / (setting.compute == setting.stream ? 1 : 2);
  const double squares = stored + (0.5 + sums) * std::pow(rounding(DType::f32), 2);
  return 2 * std::sqrt(operations * (1 + setting.ranks) * squares);
}
double gradient_error(const Setting& setting) {
  return error_after(23 * setting.config.n_layer + 7, setting);
}
// Tolerance of a sum of losses, in nats. A token's loss is the difference between a logit, here of order one,
// and the logarithm of the sum of exponentials.
double loss_error(const Setting& setting) {
  return 2 * kRows * error_after(11 * setting.config.n_layer + 3, setting);
}

class TensorParallel : public testing::TestWithParam<std::tuple<const char*, Types>> {
 protected:
  Setting setting(const GptConfig& config = kUnevenHeads, int ranks = 1, bool sequence = false) const {
    return {.backend = std::get<0>(GetParam()),
            .compute = std::get<1>(GetParam()).compute,
            .stream = std::get<1>(GetParam()).stream,
            .config = config,
            .ranks = ranks,
            .sequence = sequence};
  }
};
INSTANTIATE_TEST_SUITE_P(, TensorParallel,
                         testing::Combine(testing::Values("reference", "cpu"), testing::ValuesIn(kTypes)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param).name();
                         });

// f(ranks, sequence)
template <typename F>
void for_tensor_groups(F&& f) {
  for (const int ranks : {2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(fmt::format("{} ranks{}", ranks, sequence ? " with sequence parallelism" : ""));
      f(ranks, sequence);
    }
  }
}

TEST_P(TensorParallel, EqualsOneRankWithinRounding) {
  for (const auto& config : {kUnevenHeads, kEvenHeads}) {
    const auto alone = run_group(setting(config))[0];
    const auto expected = whole_gradients({alone}, false);
    for_tensor_groups([&](int ranks, bool sequence) {
      const auto group_setting = setting(config, ranks, sequence);
      const auto group = run_group(group_setting);
      for (const auto& rank : group) {
        EXPECT_NEAR(rank.loss, alone.loss, loss_error(group_setting));
        EXPECT_NEAR(rank.evaluated, alone.evaluated, loss_error(group_setting));
        EXPECT_EQ(rank.loss, group[0].loss);
        EXPECT_EQ(rank.evaluated, group[0].evaluated);
        EXPECT_EQ(rank.predictions, group[0].predictions);
      }
      // In bfloat16, rounding may decide between classes.
      if (group_setting.compute == DType::f32) {
        EXPECT_EQ(group[0].predictions, alone.predictions);
      }
      const auto gradients = whole_gradients(group, sequence);
      ASSERT_EQ(gradients.size(), expected.size());
      for (const auto& [name, gradient] : gradients) {
        const Values& whole = expected.at(name);
        EXPECT_LE(norm(gradient - whole), gradient_error(group_setting) * norm(whole)) << name;
      }
    });
  }
}

TEST_P(TensorParallel, GivesTheSameBitsEveryTimeAndWithRecompute) {
  for_tensor_groups([&](int ranks, bool sequence) {
    auto once = setting(kUnevenHeads, ranks, sequence);
    const auto bits = run_group(once);
    EXPECT_TRUE(run_group(once) == bits);
    for (const auto recompute : {Recompute::gelu, Recompute::light, Recompute::block}) {
      once.recompute = recompute;
      EXPECT_TRUE(run_group(once) == bits) << static_cast<int>(recompute);
    }
  });
}

// Ranks combine statistics chunk by chunk; 33 classes are padded to 16 on one rank and to 32 on the other.
TEST(TensorParallelHead, ChunksHaveAsManyRowsOnEveryRank) {
  const GptConfig config{.n_layer = 1, .n_head = 2, .n_embd = 8, .block_size = 64, .vocab_size = 33};
  const auto rows = [&](int rank) {
    Arena arena;
    const TensorRank tensor{.rank = rank, .size = 2};
    return Head::Activations::take(arena, config, {2, 64}, DType::f32, {.elements = 2048}, tensor)
        .logits.rows();
  };
  EXPECT_EQ(rows(0), 64);
  EXPECT_EQ(rows(1), 64);
}

}  // namespace
}  // namespace shoal::test
