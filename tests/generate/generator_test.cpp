#include "generate/generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "core/error.h"
#include "generate/tiny_model.h"
#include "ops/cpu/cpu.h"
#include "ops/reference/reference.h"

namespace shoal {
namespace {

using test::TinyModel;
using testing::Each;
using testing::HasSubstr;
using testing::Lt;
using testing::ThrowsMessage;
using Tokens = std::vector<std::int32_t>;

// More than four windows of the tiny model's block.
constexpr std::int64_t kTokens = 40;
const Tokens kStart = {5, 17, 40};

Tokens generate(Generator& generator, const Tokens& prompt, SampleOptions options, std::int64_t sample = 0) {
  Tokens made;
  generator.generate(prompt, options, sample, [&](const GeneratedToken& token) {
    made.push_back(token.id);
    return true;
  });
  return made;
}

Tokens generate(TinyModel& model, const Tokens& prompt, SampleOptions options, std::int64_t sample = 0) {
  Generator generator(*model.backend, *model.engine, model.config, model.compute);
  return generate(generator, prompt, options, sample);
}

SampleOptions sampling(double temperature, std::uint64_t seed = 1337) {
  return {.temperature = temperature, .top_k = 0, .seed = seed, .max_tokens = kTokens};
}

TEST(Generator, TheCacheChangesNoToken) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    TinyModel model(make_cpu_backend(2), compute);
    for (const double temperature : {0.0, 0.7, 1.5}) {
      for (const std::uint64_t seed : {1, 2, 3}) {
        auto with = sampling(temperature, seed), without = with;
        without.cache = false;
        EXPECT_EQ(generate(model, kStart, with), generate(model, kStart, without));
      }
    }
  }
}

// The window, spelled out, and every token from a fresh reading of it; the reference backend computes each
// position by itself, so its bits do not depend on how the text was read.
TEST(Generator, GreedyTokensFollowTheWindow) {
  TinyModel model(make_reference_backend());
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  Tokens text = kStart, window = text;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    decoder.prefill(0, window);
    const auto logits = decoder.logits(0);
    text.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
    window.push_back(text.back());
    if (window.size() > 13) window.assign(text.end() - 6, text.end());
  }
  const auto made = generate(model, kStart, sampling(0));
  EXPECT_EQ(made, Tokens(text.begin() + 3, text.end()));
  EXPECT_GT(std::set(made.begin(), made.end()).size(), 2u);  // or the test would show little
}

TEST(Generator, ALongPromptIsCutToHalfABlock) {
  TinyModel model(make_cpu_backend(1));
  Tokens prompt(14);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(4 * i);
  EXPECT_EQ(generate(model, prompt, sampling(0)),
            generate(model, Tokens(prompt.end() - 6, prompt.end()), sampling(0)));
  EXPECT_EQ(Generator::window(13, model.config), 13);
  EXPECT_EQ(Generator::window(14, model.config), 6);
}

TEST(Generator, ThreadsChangeNoToken) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    TinyModel one(make_cpu_backend(1), compute), three(make_cpu_backend(3), compute);
    EXPECT_EQ(generate(one, kStart, sampling(1)), generate(three, kStart, sampling(1)));
  }
}

TEST(Generator, ASampleDoesNotDependOnWhatWasMadeBefore) {
  TinyModel model(make_cpu_backend(1));
  const auto alone = generate(model, kStart, sampling(1), 2);
  Generator generator(*model.backend, *model.engine, model.config, model.compute);
  const auto first = generate(generator, kStart, sampling(1), 0);
  generate(generator, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, sampling(1), 1);
  EXPECT_EQ(generate(generator, kStart, sampling(1), 2), alone);
  EXPECT_EQ(generate(generator, kStart, sampling(1), 0), first);
  EXPECT_NE(first, alone);
  EXPECT_NE(generate(generator, kStart, sampling(1, 1338), 0), first);
}

// Texts begin and end at different times; places are taken again.
TEST(Generator, ASampleDoesNotDependOnThoseBesideIt) {
  for (const auto compute : {DType::f32, DType::bf16}) {
    TinyModel model(make_cpu_backend(2), compute);
    constexpr std::int64_t kSamples = 9;
    const auto of = [](std::int64_t sample) {
      auto rule = sampling(sample % 2 == 0 ? 1 : 0);
      rule.max_tokens = 10 + 5 * (sample % 4);
      rule.frequency_penalty = sample % 3 == 0 ? 0.5 : 0;
      return rule;
    };
    const auto prompt = [](std::int64_t sample) {
      return Tokens(static_cast<std::size_t>(1 + 3 * sample % 14), static_cast<std::int32_t>(sample));
    };
    std::vector<Tokens> together(kSamples);
    Generator generator(*model.backend, *model.engine, model.config, compute, 4);
    for (std::int64_t next = 0, active = 0; next < kSamples || active > 0; active = generator.step()) {
      for (; next < kSamples && generator.free_places() > 0; ++next) {
        generator.begin(prompt(next), of(next), next, [&texts = together, next](const GeneratedToken& token) {
          texts[static_cast<std::size_t>(next)].push_back(token.id);
          return true;
        });
      }
      if (generator.free_places() == 0) {
        EXPECT_THROW(generator.begin(kStart, of(0), 0, {}), Error);
      }
    }
    for (std::int64_t sample = 0; sample < kSamples; ++sample) {
      EXPECT_EQ(together[static_cast<std::size_t>(sample)],
                generate(model, prompt(sample), of(sample), sample))
          << sample;
    }
  }
}

TEST(Generator, SamplesOnlyClassesThatExist) {
  TinyModel model(make_cpu_backend(1));
  auto hot = sampling(1000);  // nearly uniform
  hot.max_tokens = 500;
  auto made = generate(model, kStart, hot);
  EXPECT_EQ(*std::ranges::max_element(made), 60);
  hot.vocab_size = 10;
  EXPECT_THAT(generate(model, kStart, hot), Each(Lt(10)));
}

TEST(Generator, StopsWhenToldTo) {
  TinyModel model(make_cpu_backend(1));
  Generator generator(*model.backend, *model.engine, model.config, model.compute);
  int calls = 0;
  generator.generate(kStart, sampling(1), 0, [&](const GeneratedToken&) { return ++calls < 3; });
  EXPECT_EQ(calls, 3);
  auto none = sampling(1);
  none.max_tokens = 0;
  EXPECT_EQ(generate(generator, kStart, none), Tokens());
}

TEST(Generator, RefusesPromptsThatTheModelCannotRead) {
  TinyModel model(make_cpu_backend(1));
  EXPECT_THAT([&] { generate(model, {}, sampling(1)); }, ThrowsMessage<UserError>(HasSubstr("empty")));
  EXPECT_THAT(
      [&] {
        generate(model, {1, 61}, sampling(1));
      },
      ThrowsMessage<UserError>(HasSubstr("token 61 of the prompt")));
  EXPECT_THROW(generate(model, {-1}, sampling(1)), UserError);
  EXPECT_THROW(generate(model, kStart, sampling(-1)), UserError);
}

// Against the logits of every beginning of the prompt, which fills the block.
TEST(Generator, GivesTheLogprobsOfThePrompt) {
  TinyModel model(make_reference_backend());
  const Tokens prompt = {5, 17, 40, 3, 14, 15, 9, 26, 53, 58, 9, 7, 60};
  Decoder decoder(*model.backend, *model.engine, model.config, model.compute);
  std::vector<Logprobs> expected;
  for (std::size_t i = 1; i < prompt.size(); ++i) {
    decoder.prefill(0, std::span(prompt).first(i));
    expected.push_back(logprobs_of(decoder.logits(0), prompt[i], 2));
  }
  Generator generator(*model.backend, *model.engine, model.config, model.compute, 2);
  auto rule = sampling(1);
  rule.logprobs = 2;
  const auto alone = generate(generator, prompt, rule);
  for (const std::int64_t tokens : {0, 3}) {
    rule.max_tokens = tokens;
    std::vector<Logprobs> scores;
    Tokens made;
    const auto on_token = [&](const GeneratedToken& token) {
      EXPECT_FALSE(scores.empty()) << "the prompt comes first";
      made.push_back(token.id);
      return true;
    };
    generator.begin(prompt, rule, 0, on_token,
                    [&](std::vector<Logprobs> given) { scores = std::move(given); });
    while (generator.step() > 0) {
    }
    ASSERT_EQ(scores.size(), expected.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].chosen, expected[i].chosen);
      EXPECT_EQ(scores[i].top, expected[i].top);
    }
    EXPECT_EQ(made, Tokens(alone.begin(), alone.begin() + tokens));
    EXPECT_EQ(generator.free_places(), 2);
  }
  const auto long_prompt = Tokens(14, 1);
  const auto ask = [&](const Tokens& tokens) {
    generator.begin(tokens, rule, 0, {}, [](std::vector<Logprobs>) {});
  };
  EXPECT_THAT([&] { ask(long_prompt); }, ThrowsMessage<UserError>(HasSubstr("14 tokens")));
  rule.vocab_size = 10;
  EXPECT_THAT([&] { ask({11}); }, ThrowsMessage<UserError>(HasSubstr("vocabulary of 10")));
}

TEST(Generator, SaysWhenTheWeightsAreDamaged) {
  TinyModel model(make_cpu_backend(1));
  for (const auto& tensor : model.engine->state(false, DataEngine::Share::held)) {
    tensor.data.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  }
  model.engine->state_loaded();
  EXPECT_THAT([&] { generate(model, {0}, sampling(1)); }, ThrowsMessage<Error>(HasSubstr("is nan")));
}

}  // namespace
}  // namespace shoal
