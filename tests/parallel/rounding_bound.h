// Bounds for the difference between runs that group their sums differently.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/ranks_run.h"

namespace shoal::test {

// Bound for the difference between the run of a tensor group and that of one rank.
//
// Both are roundings of the same exact run. They group the terms of some sums differently: of row-parallel
// products, of the statistics of the loss, of the norms' gradients over tokens; and of all products, since
// kernels choose their order by the shape. Roundings have random signs (Higham and Mary 2019), and so have
// the terms: a sum of n terms has a relative error of u sqrt(n / 2), and two orders of it differ by u
// sqrt(n). A value that passes through many sums has the root of the total of their lengths. In a block these
// are C for each of the two norms, C, C, C and 4 C for the products, the head size and T for attention: less
// than 10 C + T. The head adds 2 C + V, and backward has twice all that. In bfloat16, sums are float32 but
// stored values are rounded: ten values in sequence in a block's forward pass, including the partial sums
// that ranks exchange, and twice as many in backward, in both runs.
//
// So a gradient is off by `relative` times its norm G. AdamW moves a parameter by about lr g / |g|, and an
// error e of g moves it by at most 2 lr e / |g|, which changes the loss by 2 lr e. Errors with random signs
// change it by 2 lr relative G. In the worst case the errors of steps add up. This is a first-order bound: it
// holds while steps are so small that a run does not amplify differences, as with this learning rate. (With
// ten times that rate, eight blocks turned differences of 1e-8 at step 5 into 1e-4 at step 10.) The losses
// themselves: a token's loss is off by |p - y| <= sqrt(2) times the error of its logits, which is rows of the
// embedding times the error of the final norm, whose elements are about 1; tokens are averaged; and a loss is
// a float32 sum of four terms.
class RoundingBound {
 public:
  RoundingBound(const RanksRun& run, const RunOutcome& one) : run_(run), one_(one) {
    constexpr double kFloat = 0x1p-24, kBfloat = 0x1p-9;
    const double channels = run.model.n_embd, blocks = run.model.n_layer;
    const auto classes = static_cast<double>(run.model.vocab_size);
    const double lengths =
        3 * (blocks * (10 * channels + run.model.block_size) + 2 * channels + classes) + leaves();
    const double kept = run.engine.compute == DType::bf16 ? 2 * 3 * (10 * blocks + 2) : 0;
    relative_ = std::sqrt(kFloat * kFloat * lengths + kBfloat * kBfloat * kept);
    float_ = 4 * kFloat * one.losses.front();
    norm_ = *std::max_element(one.norms.begin(), one.norms.end());
    const auto& wte = one.state.at("transformer.wte.weight");
    for (std::size_t row = 0; row < wte.size(); row += static_cast<std::size_t>(run.model.n_embd)) {
      const auto* first = wte.data() + row;
      const double squares = std::inner_product(first, first + run.model.n_embd, first, 0.0);
      longest_row_ = std::max(longest_row_, std::sqrt(squares));
    }
  }

  double gradient() const { return relative_; }  // relative to its norm, at the same parameters
  double loss(int step) const { return bound(step, norm_, leaves() * run_.model.block_size); }
  // For one micro-batch, whose own gradient has a larger norm than the mean of all, which are nearly
  // orthogonal.
  double evaluation(int step) const {
    return bound(step, std::sqrt(leaves()) * norm_, run_.model.block_size);
  }

  void expect_within(const RunOutcome& run) const {
    for (std::size_t i = 0; i < one_.losses.size(); ++i) {
      const int step = static_cast<int>(i);
      EXPECT_NEAR(run.losses.at(i), one_.losses[i], loss(step)) << "step " << step;
    }
    EXPECT_NEAR(run.norms.at(0), one_.norms[0], gradient() * one_.norms[0]);
    for (std::size_t i = 0; i < one_.evaluations.size(); ++i) {
      const int step = static_cast<int>(i + 1) * run_.evaluate_every;
      EXPECT_NEAR(run.evaluations.at(i), one_.evaluations[i], evaluation(step) * run_.model.block_size);
    }
    if (run_.engine.compute == DType::f32) {
      EXPECT_EQ(run.predictions, one_.predictions);
    }
    // A larger bound would be meaningless.
    const double most = run_.engine.compute == DType::f32 ? 1e-6 : 0.0025;
    EXPECT_LT(loss(run_.steps), most * one_.losses.front());
    EXPECT_LT(one_.losses.back(), one_.losses.front() - 0.1) << "it does not learn";
  }

 private:
  double leaves() const { return run_.engine.micro_batches; }
  double bound(int step, double norm, double tokens) const {
    return float_ + relative_ * (longest_row_ * std::sqrt(2 / tokens) + step * 2 * run_.lr * norm);
  }

  RanksRun run_;
  RunOutcome one_;
  double relative_ = 0, float_ = 0, norm_ = 0, longest_row_ = 0;
};

}  // namespace shoal::test
