// AccumAdamW and AccumAdam on the backends against the published equations, in double.
#include <algorithm>
#include <cmath>
#include <string>

#include "ops/conformance.h"
#include "ops/make_backend.h"
#include "optim/adamw.h"

namespace shoal::test {
namespace {

// All exact in float32, as 1 - beta is.
constexpr double kLr = 0x1p-7, kBeta1 = 0.875, kBeta2 = 0.96875, kEps = 0x1p-27, kDecay = 0.125,
                 kScale = 0.75;

AdamWConfig config_of(int accum_steps, bool l2) {
  return {.beta1 = kBeta1,
          .beta2 = kBeta2,
          .eps = kEps,
          .weight_decay = kDecay,
          .l2 = l2,
          .accum_steps = accum_steps};
}

// One parameter by the equations, word for word: m and v are stored decayed. Beside every value stands how
// far float32 arithmetic may be from it: each operation adds its roundings, at most gamma(k) of the
// magnitudes that k of them act on, to what its operands bring along, and products of errors are left out
// (see tolerance.h).
struct Model {
  double theta = 0, m = 0, v = 0, a = 0;
  double theta_error = 0, m_error = 0, v_error = 0, a_error = 0;

  void step(double grad, int s, int A, bool l2) {
    double g = kScale * grad, g_error = gamma(1) * std::abs(g);
    if (l2) {
      g_error += gamma(2) * (std::abs(g) + std::abs(kDecay * theta)) + kDecay * theta_error;
      g += kDecay * theta;
    } else {
      theta *= 1 - kLr * kDecay;
      theta_error += gamma(3) * std::abs(theta);
    }
    a += g / A;
    a_error += g_error / A + gamma(3) * (std::abs(a) + std::abs(g / A));  // 1/A, the product, the sum

    // b1 M + (1 - b1) g of what a backend keeps, where m = b1 M.
    const double m_hat = m + (1 - kBeta1) * g, v_hat = v + (1 - kBeta2) * g * g;
    const double m_hat_error =
        m_error + (1 - kBeta1) * g_error + gamma(3) * (std::abs(m) + std::abs((1 - kBeta1) * g));
    const double v_hat_error = v_error + (1 - kBeta2) * 2 * std::abs(g) * g_error + gamma(4) * v_hat;

    const int k = (s + A - 1) / A;
    const double c1 = 1 - std::pow(kBeta1, k), c2 = 1 - std::pow(kBeta2, k);
    const double root = std::sqrt(v_hat) / std::sqrt(c2), denominator = root + kEps;
    // The corrections are rounded, and of the square roots each halves errors and rounds; then the quotient.
    const double denominator_error =
        root * (v_hat_error / (2 * v_hat) + gamma(2) + 2 * kFunctionError) + gamma(1) * denominator;
    const double update = kLr / c1 * m_hat / denominator;
    const double update_error = kLr / c1 / denominator * m_hat_error +
                                std::abs(update) * (denominator_error / denominator + gamma(4));
    theta -= update;
    theta_error += update_error + gamma(1) * (std::abs(theta) + std::abs(update));

    if (s % A != 0) return;
    m_error = kBeta1 * (m_error + (1 - kBeta1) * a_error) +
              gamma(4) * kBeta1 * (std::abs(m) + std::abs((1 - kBeta1) * a));
    v_error = kBeta2 * (v_error + (1 - kBeta2) * 2 * std::abs(a) * a_error) +
              gamma(5) * kBeta2 * (v + (1 - kBeta2) * a * a);
    m = kBeta1 * (m + (1 - kBeta1) * a);
    v = kBeta2 * (v + (1 - kBeta2) * a * a);
    a = a_error = 0;
  }
};

// A run of an optimizer on one backend, over parameters that start as normal deviates.
class Optimized {
 public:
  Optimized(Backend& backend, const AdamWConfig& config, std::int64_t n, bool with_mean)
      : backend_(backend),
        config_(config),
        n_(n),
        with_mean_(with_mean),
        weights(backend, DType::f32, {n}, normal_values(n, 1000)),
        copy(backend, DType::bf16, {n}),
        m(backend, DType::f32, {n}),
        v(backend, DType::f32, {n}),
        mean(backend, DType::f32, {n}),
        scale_(backend, DType::f32, {1}, Values{kScale}) {}

  // Update number s, counted from 1, over neighbouring parts that end at the cuts.
  void step(int s, const std::vector<std::int64_t>& cuts = {}) {
    const Buffer gradient(backend_, DType::f32, {n_}, gradients(s));
    const Scalar<AdamWScalars> scalars(backend_, adamw_scalars(config_, kLr, s));
    auto settings = adamw_settings(config_, true);
    settings.scalars = scalars.get();
    settings.grad_scale = static_cast<const Tensor&>(scale_).as<const float>();
    std::int64_t first = 0;
    const auto update = [&](std::int64_t end) {
      const auto part = [&](const Tensor& x) {
        return Tensor{
            x.as<std::byte>() + static_cast<std::size_t>(first) * size_of(x.dtype), x.dtype, {end - first}};
      };
      backend_.adamw({.weights = part(weights),
                      .compute = part(copy),
                      .m = part(m),
                      .v = part(v),
                      .mean = with_mean_ ? part(mean) : Tensor{},
                      .grads = part(gradient)},
                     settings);
      first = end;
    };
    for (const auto cut : cuts) update(cut);
    update(n_);
  }
  Values gradients(int s) const { return normal_values(n_, static_cast<std::uint32_t>(s)); }
  std::vector<std::vector<std::byte>> bytes() const {
    return {weights.bytes(), copy.bytes(), m.bytes(), v.bytes(), mean.bytes()};
  }

 private:
  Backend& backend_;
  AdamWConfig config_;
  std::int64_t n_;
  bool with_mean_;

 public:
  const Buffer weights, copy, m, v, mean;

 private:
  const Buffer scale_;
};

struct Case {
  std::string backend;
  int accum_steps;
  bool l2;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.backend << (one.l2 ? " AccumAdam" : " AccumAdamW") << " in windows of " << one.accum_steps;
}

class AccumAdamW : public testing::TestWithParam<Case> {};

// In and at the ends of windows, and one step into the fourth.
TEST_P(AccumAdamW, FollowsTheEquations) {
  const auto& [name, A, l2] = GetParam();
  const std::int64_t n = 1003;
  const auto backend = make_backend(backend_kind(name).value(), {.threads = 2});
  Optimized run(*backend, config_of(A, l2), n, A > 1);
  std::vector<Model> models(static_cast<std::size_t>(n));
  const Values start = run.weights.values();
  for (std::size_t i = 0; i < models.size(); ++i) models[i].theta = start[i];

  for (int s = 1; s <= 3 * A + 1; ++s) {
    SCOPED_TRACE("step " + std::to_string(s));
    run.step(s);
    const Values g = run.gradients(s);
    for (std::size_t i = 0; i < models.size(); ++i) models[i].step(g[i], s, A, l2);

    const auto expect = [&](const char* what, const Values& actual, double Model::*value,
                            double Model::*error) {
      SCOPED_TRACE(what);
      Values expected(models.size()), bound(models.size());
      for (std::size_t i = 0; i < models.size(); ++i) {
        expected[i] = models[i].*value;
        bound[i] = models[i].*error + kSmallest;
      }
      expect_within(actual, expected, bound);
    };
    expect("theta", run.weights.values(), &Model::theta, &Model::theta_error);
    expect("m", kBeta1 * run.m.values(), &Model::m, &Model::m_error);
    expect("v", kBeta2 * run.v.values(), &Model::v, &Model::v_error);
    if (A > 1) expect("a", run.mean.values(), &Model::a, &Model::a_error);
    EXPECT_TRUE((run.copy.values() == rounded(run.weights.values(), DType::bf16)).min());
  }
  // The bounds say something: updates are of the size of the learning rate. A few elements' are wider, where
  // gradient and decay cancel and the update is little more than their sign.
  double sum = 0;
  for (const auto& model : models) sum += model.theta_error;
  EXPECT_LT(sum / static_cast<double>(n), 1e-3 * kLr);
}

INSTANTIATE_TEST_SUITE_P(Backends, AccumAdamW, testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const auto* backend : {"reference", "cpu"}) {
                             for (const int steps : {1, 2, 3, 4, 7}) {
                               for (const bool l2 : {false, true}) cases.push_back({backend, steps, l2});
                             }
                           }
                           return cases;
                         }()),
                         [](const auto& param_info) {
                           const auto& one = param_info.param;
                           return one.backend + (one.l2 ? "L2_" : "_") + std::to_string(one.accum_steps);
                         });

// Not only because no mean is kept then: the kernels' arithmetic is the same.
TEST(AccumAdamWKernels, AWindowOfOneStepIsAdamWBitForBit) {
  for (const auto* name : {"reference", "cpu"}) {
    const auto backend = make_backend(backend_kind(name).value(), {.threads = 1});
    for (const bool l2 : {false, true}) {
      Optimized plain(*backend, config_of(1, l2), 1003, false),
          windows(*backend, config_of(1, l2), 1003, true);
      for (int s = 1; s <= 200; ++s) {
        plain.step(s);
        windows.step(s);
      }
      EXPECT_TRUE(plain.bytes() == windows.bytes()) << name << (l2 ? ", L2" : "");
    }
  }
}

TEST(AccumAdamWKernels, ThreadsAndCutsChangeNothing) {
  const std::int64_t n = 140003;  // several of the blocks that threads share
  const std::vector<std::int64_t> cuts = {1,    2,    5,    16,    17,    33,    48,    64,
                                          1024, 1040, 2047, 16384, 33333, 65537, 131072};
  for (const bool l2 : {false, true}) {
    const auto run = [&](int threads, const std::vector<std::int64_t>& at) {
      const auto backend = make_cpu_backend(threads);
      Optimized result(*backend, config_of(3, l2), n, true);
      for (int s = 1; s <= 4; ++s) result.step(s, at);
      return result.bytes();
    };
    const auto alone = run(1, {});
    EXPECT_TRUE(run(1, cuts) == alone);
    for (const int threads : {2, 3, 5, 8, 16}) EXPECT_TRUE(run(threads, {}) == alone) << threads;
    EXPECT_TRUE(run(3, cuts) == alone);
  }
}

TEST(AccumAdamWStep, CorrectionsCountWindows) {
  const AdamWConfig config{.beta1 = 0.9, .beta2 = 0.95, .accum_steps = 4};
  for (const int update : {1, 4}) {
    EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, update).correction1, 0.1f);
    EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, update).correction2, 0.05f);
    EXPECT_EQ(adamw_scalars(config, 1e-3, update).commit, update == 4 ? 1 : 0);
  }
  EXPECT_FLOAT_EQ(adamw_scalars(config, 1e-3, 5).correction1, 0.19f);
  EXPECT_EQ(adamw_settings(config, true).share, 0.25f);
}

}  // namespace
}  // namespace shoal::test
