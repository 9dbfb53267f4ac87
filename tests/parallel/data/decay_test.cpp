// The parameters that decay: updates compared with AdamW written by hand, on one rank and in meshes.
#include <gmock/gmock.h>

#include <cmath>

#include "parallel/ranks_run.h"

namespace shoal::test {
namespace {

constexpr int kSteps = 3;
constexpr double kEpsilon = 1.0 / (1 << 24);  // half a unit in float32's last place

bool decays(Decay decay, std::string_view name, const Shape& shape) {
  if (decay == Decay::all) return true;
  const bool embedding = name == "transformer.wte.weight" || name == "transformer.wpe.weight";
  return shape.rank() == 2 && !(decay == Decay::no_embeddings && embedding);
}

RanksRun decay_run(Decay decay) {
  RanksRun run;
  run.engine.optimizer = AdamWConfig{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 10};
  run.engine.decay = decay;
  run.engine.micro_batches = 2;
  run.steps = kSteps;
  return run;
}

struct HandAdamW {
  double w = 0, m = 0, v = 0;
  void update(const RanksRun& run, double gradient, int number, bool decay) {
    const auto& adamw = adamw_of(run.engine);
    m = adamw.beta1 * m + (1 - adamw.beta1) * gradient;
    v = adamw.beta2 * v + (1 - adamw.beta2) * gradient * gradient;
    const double mean = m / (1 - std::pow(adamw.beta1, number)),
                 square = v / (1 - std::pow(adamw.beta2, number));
    if (decay) w -= run.lr * adamw.weight_decay * w;
    w -= run.lr * mean / (std::sqrt(square) + adamw.eps);
  }
};

class DecayOf : public testing::TestWithParam<Decay> {};

TEST_P(DecayOf, IsThatOfAdamWByHand) {
  const auto run = decay_run(GetParam());
  const auto self = make_self_communicator();
  RankOfRun rank(run, *self);
  std::map<std::string, StateTensor> state;
  for (const auto& tensor : rank.engine().state(true, DataEngine::Share::held)) state[tensor.name] = tensor;

  std::map<std::string, std::vector<HandAdamW>> by_hand;
  for (int step = 0; step < kSteps; ++step) {
    RunOutcome outcome;
    rank.gradient(step, outcome);
    for (std::size_t u = 0; u < rank.engine().units().size(); ++u) {
      const UnitView gradients = rank.engine().gradients(static_cast<int>(u), {});
      for (const auto& parameter : gradients.spec->parameters) {
        const auto& [name, shape] = std::tie(parameter.name, parameter.shape);
        const auto* gradient = gradients[parameter.slice()].as<float>();
        const auto* weights = state.at(name).data.as<float>();
        auto& elements = by_hand[name];
        elements.resize(static_cast<std::size_t>(shape.count()));
        for (std::size_t e = 0; e < elements.size(); ++e) {
          if (step == 0) elements[e].w = weights[e];
          elements[e].update(run, gradient[e], step + 1, decays(GetParam(), name, shape));
        }
      }
    }
    rank.engine().update();
  }

  for (const auto& [name, elements] : by_hand) {
    const auto* weights = state.at(name).data.as<float>();
    for (std::size_t e = 0; e < elements.size(); ++e) {
      // A step rounds the weight twice, and an update of at most twice the rate some ten times.
      const double bound = kSteps * kEpsilon * (2 * std::abs(elements[e].w) + 20 * run.lr);
      ASSERT_NEAR(weights[e], elements[e].w, bound) << name << " " << e;
    }
  }
}

// The order of parameters in a unit's buffer depends on optim.decay. So shards and tensor ranks have other
// elements, and moments must match them.
TEST_P(DecayOf, IsTheSameInMeshes) {
  auto run = decay_run(GetParam());
  run.engine.layout_exact = true;
  const auto alone = train(run).bytes();
  run.mesh.data = 2;
  run.engine.zero = 3;
  EXPECT_EQ(train(run).bytes(), alone);
  run.mesh.pipeline = 3;
  run.engine.zero = 1;
  EXPECT_EQ(train(run).bytes(), alone);

  run.mesh = {.tensor = 2};
  run.engine.zero = 0;
  run.sequence = true;
  const auto shared = train(run).state;
  run.mesh = {};
  run.sequence = false;
  for (const auto& [name, values] : train(run).state) {
    // A bias may have a gradient that is zero up to rounding (the keys' biases), with any update by AdamW.
    if (name.starts_with("optimizer.") || name.ends_with("bias")) continue;
    double largest = 0;
    for (std::size_t e = 0; e < values.size(); ++e)
      largest = std::max(largest, std::abs(double{values[e]} - shared.at(name)[e]));
    // A step's decay moves the largest weight of any tensor by a tenth of 0.05 or more, roundings far less.
    EXPECT_LT(largest, 5e-4) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Decays, DecayOf, testing::Values(Decay::matrices, Decay::all, Decay::no_embeddings));

}  // namespace
}  // namespace shoal::test
