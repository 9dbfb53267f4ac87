#include "generate/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "generate/tiny_model.h"
#include "model/gpt.h"
#include "ops/cpu/cpu.h"
#include "ops/reference/reference.h"

namespace shoal {
namespace {

using test::TinyModel;
using Tokens = std::vector<std::int32_t>;

const Tokens kText = {3, 14, 15, 9, 26, 53, 58, 9, 7, 60, 0, 32, 38};

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

double loss_of(std::span<const float> logits, std::int32_t target) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return std::log(sum) - double{logits[static_cast<std::size_t>(target)]};
}

// The loss of every next token of kText, as the model's own evaluation sums it.
double evaluated_loss(TinyModel& model) {
  const auto n = static_cast<std::int64_t>(kText.size()) - 1;
  Gpt gpt(*model.backend, *model.engine, model.config,
          {.batch = {.batch = 1, .positions = n}, .compute = model.compute, .backward = false});
  Tokens tokens(kText.begin(), kText.end() - 1), targets(kText.begin() + 1, kText.end());
  double loss = 0;
  gpt.evaluate({.tokens = {tokens.data(), DType::i32, {1, n}},
                .targets = {targets.data(), DType::i32, {1, n}},
                .address = {}},
               {&loss, DType::f64, {1}});
  return loss;
}

// Both ways compute in double and store float32, so activations differ by a few units in the last place at
// most, 2^-24 each; the losses, below 16 each, then differ by 2^-20 times the 12 of them and a small
// amplification through two blocks. A mistake in a position or the mask moves the loss by more than 0.1.
TEST(Decoder, AgreesWithTheModelThatWasTrained) {
  TinyModel model(make_reference_backend());
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  for (const std::size_t prompt : {1, 5, 12}) {
    double loss = 0;
    for (std::size_t i = 1; i < kText.size(); ++i) {
      if (i <= prompt) {
        decoder.prefill(std::span(kText).first(i));
      } else {
        decoder.extend(std::span(kText).subspan(i - 1, 1));
      }
      EXPECT_EQ(decoder.length(), static_cast<std::int64_t>(i));
      loss += loss_of(decoder.logits(), kText[i]);
    }
    EXPECT_NEAR(loss, evaluated_loss(model), 12 * 16 * 0x1p-20);
  }
}

TEST(Decoder, ReadingAgainGivesTheSameBits) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 2, 3}) {
      TinyModel model(make_cpu_backend(threads), compute);
      Decoder by_token(*model.backend, *model.engine, model.config, compute);
      Decoder again(*model.backend, *model.engine, model.config, compute);
      for (const std::size_t prompt : {1, 2, 6, 12, 13}) {
        by_token.prefill(std::span(kText).first(prompt));
        for (std::size_t i = prompt; i < kText.size(); ++i) {
          by_token.extend(std::span(kText).subspan(i, 1));
          again.prefill(std::span(kText).first(prompt));
          again.extend(std::span(kText).subspan(prompt, i + 1 - prompt));
          ASSERT_EQ(copy(by_token.logits()), copy(again.logits())) << prompt << " then " << i;
        }
      }
    }
  }
}

TEST(Decoder, LogitsHoldNoPadding) {
  TinyModel model(make_cpu_backend(1));
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  decoder.prefill(kText);
  EXPECT_EQ(decoder.logits().size(), 61u);
}

TEST(Decoder, RefusesMoreThanABlock) {
  TinyModel model(make_cpu_backend(1));
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  EXPECT_THROW(decoder.prefill({}), Error);
  EXPECT_THROW(decoder.prefill(Tokens(14)), Error);
  decoder.prefill(kText);
  EXPECT_THROW(decoder.extend(Tokens(1)), Error);
  EXPECT_EQ(decoder.length(), 13);
}

}  // namespace
}  // namespace shoal
