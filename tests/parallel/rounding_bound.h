// How far a run whose sums are grouped otherwise may be from another one.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/ranks_run.h"

namespace shoal::test {

// How far a tensor group's run may be from that of one rank.
//
// The two are roundings of the same exact run. What differs are sums whose terms are grouped otherwise: those
// of row-parallel products, of the statistics of the loss, of norms' gradients over tokens; and since kernels
// choose their order by the shape, those of all products. Roundings have random signs (Higham and Mary 2019),
// and so have the terms: a sum of n of them has, to its own size, an error of u sqrt(n / 2), and two orders
// of it differ by u sqrt(n). What passes through many sums has the root of all their lengths. In a block
// those are C of either norm, C, C, C and 4 C of the products, head size and T of attention, less than 10 C +
// T; through the head 2 C + V; and backward twice that. In bfloat16, sums are float32 but what is kept is
// rounded: ten values of a block one after the other in the forward pass, counting the partial sums that
// ranks exchange, as many backward twice, in both runs.
//
// So a gradient is off by `relative` times its norm G. AdamW moves a parameter by about lr g / |g|, and an
// error e of g moves it by at most 2 lr e / |g|, which changes the loss by 2 lr e; errors of random signs
// change it by 2 lr relative G. Steps add up at worst. This is of first order: it holds while steps are so
// small that a run does not magnify what it is given, as at this rate of learning. (At ten times that, eight
// blocks made of differences of 1e-8 at step 5 some of 1e-4 at step 10.) The losses themselves: a token's is
// off by |p - y| <= sqrt(2) times the error of its logits, rows of the embedding times the error of the final
// norm, whose elements are about 1; tokens are averaged; and a loss is a float32 sum of four terms.
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

  double gradient() const { return relative_; }  // to its norm, at the same parameters
  double loss(int step) const { return bound(step, norm_, leaves() * run_.model.block_size); }
  // Of one micro-batch, whose own gradient is longer than the sum of all, which are nearly orthogonal.
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
    // What a bound has to be to say anything.
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
