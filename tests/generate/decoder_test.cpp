#include "generate/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/error.h"
#include "generate/tiny_model.h"
#include "model/gpt.h"
#include "ops/cpu/cpu.h"
#include "ops/far_backend.h"
#include "ops/int8.h"
#include "ops/reference/reference.h"

namespace shoal {
namespace {

using test::loss_of;
using test::TinyModel;
using Tokens = std::vector<std::int32_t>;

const Tokens kText = {3, 14, 15, 9, 26, 53, 58, 9, 7, 60, 0, 32, 38};

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

void extend(Decoder& decoder, std::span<const std::int32_t> ids, int text = 0) {
  std::vector<Decoder::Token> tokens;
  for (const auto id : ids) tokens.push_back({text, id});
  decoder.extend(tokens);
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
        decoder.prefill(0, std::span(kText).first(i));
      } else {
        extend(decoder, std::span(kText).subspan(i - 1, 1));
      }
      EXPECT_EQ(decoder.length(0), static_cast<std::int64_t>(i));
      loss += loss_of(decoder.logits(0), kText[i]);
    }
    EXPECT_NEAR(loss, evaluated_loss(model), 12 * 16 * 0x1p-20);
  }
}

// Weights in 8 bits are those that they are rounded to, of which the other model has each as a float32: it
// differs by half a unit in the last place, and the losses by as much as above.
TEST(Decoder, InEightBitsIsTheModelWithRoundedWeights) {
  TinyModel packed(make_reference_backend()), rounded(make_reference_backend());
  for (const auto& [name, shape, box, first, data, adapter] :
       rounded.engine->state(false, DataEngine::Share::held)) {
    if (shape.rank() < 2 || name == "transformer.wpe.weight") continue;
    std::vector<std::int8_t> bytes(static_cast<std::size_t>(Int8Rows::shape(shape[0], shape[1]).count()));
    const Tensor in_8_bits{bytes.data(), DType::i8, Int8Rows::shape(shape[0], shape[1])};
    rounded.backend->to_int8(in_8_bits, data.reshaped(shape));
    const Int8Rows rows(in_8_bits);
    for (std::int64_t i = 0; i < shape.count(); ++i)
      data.as<float>()[i] = rows.step(i / shape[1]) * rows.row(i / shape[1])[i % shape[1]];
  }
  rounded.engine->state_loaded();
  const double before = evaluated_loss(packed);
  packed.engine->to_int8();
  EXPECT_GT(std::abs(evaluated_loss(packed) - before), 1e-3);
  EXPECT_NEAR(evaluated_loss(packed), evaluated_loss(rounded), 12 * 16 * 0x1p-20);

  Decoder decoder(*packed.backend, *packed.engine, packed.config, packed.compute);
  decoder.prefill(0, std::span(kText).first(1));
  double loss = loss_of(decoder.logits(0), kText[1]);
  for (std::size_t i = 2; i < kText.size(); ++i) {
    extend(decoder, std::span(kText).subspan(i - 1, 1));
    loss += loss_of(decoder.logits(0), kText[i]);
  }
  EXPECT_NEAR(loss, evaluated_loss(rounded), 12 * 16 * 0x1p-20);
}

TEST(Decoder, ReadingAgainGivesTheSameBits) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 2, 3}) {
      TinyModel model(make_cpu_backend(threads), compute);
      Decoder by_token(*model.backend, *model.engine, model.config, compute);
      Decoder again(*model.backend, *model.engine, model.config, compute);
      for (const std::size_t prompt : {1, 2, 6, 12, 13}) {
        by_token.prefill(0, std::span(kText).first(prompt));
        for (std::size_t i = prompt; i < kText.size(); ++i) {
          extend(by_token, std::span(kText).subspan(i, 1));
          again.prefill(0, std::span(kText).first(prompt));
          extend(again, std::span(kText).subspan(prompt, i + 1 - prompt));
          ASSERT_EQ(copy(by_token.logits(0)), copy(again.logits(0))) << prompt << " then " << i;
        }
      }
    }
  }
}

// Ten texts, more than a product has rows, of all lengths, are read beside each other in changing order.
TEST(Decoder, ATextDoesNotDependOnThoseBesideIt) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 3}) {
      TinyModel model(make_cpu_backend(threads), compute);
      constexpr int kTexts = 10;
      Decoder together(*model.backend, *model.engine, model.config, compute, kTexts);
      std::vector<Tokens> texts(kTexts);
      for (int i = 0; i < kTexts; ++i) {
        for (int j = 0; j < 12; ++j) texts[static_cast<std::size_t>(i)].push_back((7 * i + 5 * j * j) % 61);
        together.prefill(
            i, std::span(texts[static_cast<std::size_t>(i)]).first(static_cast<std::size_t>(1 + i % 4)));
      }
      for (int step = 0; step < 8; ++step) {
        std::vector<Decoder::Token> next;
        std::vector<int> order;
        for (int k = 0; k < kTexts; ++k) {
          const int i = (3 * k + step) % kTexts;
          if ((i + step) % 3 == 0) continue;  // some pause
          order.push_back(i);
          next.push_back(
              {i, texts[static_cast<std::size_t>(i)][static_cast<std::size_t>(together.length(i))]});
        }
        together.extend(next);
        for (const int i : order) {
          const auto& text = texts[static_cast<std::size_t>(i)];
          const auto prompt = static_cast<std::size_t>(1 + i % 4);
          Decoder alone(*model.backend, *model.engine, model.config, compute);
          alone.prefill(0, std::span(text).first(prompt));
          extend(alone,
                 std::span(text).subspan(prompt, static_cast<std::size_t>(together.length(i)) - prompt));
          ASSERT_EQ(copy(together.logits(i)), copy(alone.logits(0))) << "text " << i << ", step " << step;
        }
      }
    }
  }
}

// On a device whose memory is out of the host's reach, and whose streams run only when the host waits for
// them.
TEST(Decoder, WaitsForItsDevice) {
  TinyModel near(make_cpu_backend(1)),
      far(std::make_unique<test::FarBackend>(make_cpu_backend(1),
                                             test::FarBackend::Eager{false, false, false}));
  std::vector<std::vector<float>> all[2];
  for (auto* model : {&near, &far}) {
    auto& seen = all[model == &far];
    Decoder decoder(*model->backend, *model->engine, model->config, model->compute, 2);
    decoder.prefill(0, std::span(kText).first(3),
                    [&](std::int64_t, std::span<const float> logits) { seen.push_back(copy(logits)); });
    decoder.prefill(1, std::span(kText).first(5));
    for (const std::int32_t id : {7, 9}) {
      decoder.extend(std::vector<Decoder::Token>{{1, id}, {0, id}});
      for (const int text : {0, 1}) seen.push_back(copy(decoder.logits(text)));
    }
  }
  EXPECT_EQ(all[0], all[1]);
}

TEST(Decoder, LogitsHoldNoPadding) {
  TinyModel model(make_cpu_backend(1));
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  decoder.prefill(0, kText);
  EXPECT_EQ(decoder.logits(0).size(), 61u);
}

TEST(Decoder, DropsNothingAndTakesNoMemoryForIt) {
  auto config = test::tiny_config();
  config.lora = {.rank = 2, .alpha = 4, .dropout = 0, .targets = {true, true, true, true}};
  const auto without = Decoder::memory_bytes(config, DType::f32);
  config.lora.dropout = 0.1;
  EXPECT_EQ(Decoder::memory_bytes(config, DType::f32), without);
}

TEST(Decoder, RefusesMoreThanABlock) {
  TinyModel model(make_cpu_backend(1));
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  EXPECT_THROW(decoder.prefill(0, {}), Error);
  EXPECT_THROW(decoder.prefill(0, Tokens(14)), Error);
  decoder.prefill(0, kText);
  EXPECT_THROW(extend(decoder, Tokens(1)), Error);
  EXPECT_EQ(decoder.length(0), 13);
}

}  // namespace
}  // namespace shoal
