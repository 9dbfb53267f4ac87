#include "generate/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "generate/generator.h"
#include "generate/tiny_model.h"
#include "ops/cpu/cpu.h"

namespace shoal {
namespace {

using test::TinyModel;
using Tokens = std::vector<std::int32_t>;

constexpr int kVocabulary = 5;
const Tokens kPrompt = {3, 1, 4};

TinyModel small_model() {
  auto config = test::tiny_config();
  config.vocab_size = kVocabulary;
  return TinyModel(make_cpu_backend(1), DType::f32, nullptr, config);
}

Decoder decoder_of(TinyModel& model, int texts) {
  return {*model.backend, *model.engine, model.config, model.compute, texts};
}

// The score of a text, which the model reads from its beginning.
double score_of(TinyModel& model, const Tokens& text, double length_penalty) {
  auto decoder = decoder_of(model, 1);
  Tokens all = kPrompt;
  all.insert(all.end(), text.begin(), text.end());
  double sum = 0;
  decoder.prefill(0, all, [&](std::int64_t position, std::span<const float> logits) {
    const auto next = static_cast<std::size_t>(position) + 1;
    if (next >= kPrompt.size() && next < all.size()) sum += logprobs_of(logits, all[next], 0).chosen;
  });
  return sum / std::pow(static_cast<double>(text.size()), length_penalty);
}

struct Best {
  Tokens text;
  double score = -INFINITY;
};

// Among all texts of `length` tokens, and shorter ones that end with `end`.
void try_all(TinyModel& model, std::int64_t length, std::int32_t end, double penalty, const Tokens& text,
             Best& best) {
  const bool ended = !text.empty() && text.back() == end;
  if (ended || std::ssize(text) == length) {
    const double score = score_of(model, text, penalty);
    if (score > best.score) best = {text, score};
    return;
  }
  for (std::int32_t id = 0; id < kVocabulary; ++id) {
    auto longer = text;
    longer.push_back(id);
    try_all(model, length, end, penalty, longer, best);
  }
}

// With as many beams as there are beginnings nothing is left out.
TEST(BeamSearch, FindsTheBestTextOfAll) {
  auto model = small_model();
  constexpr int kBeams = 64;
  auto decoder = decoder_of(model, kBeams);
  for (const std::int32_t end : {-1, 0, 2}) {
    for (const double penalty : {0.0, 1.0, 3.0}) {
      const auto found =
          beam_search(decoder, kPrompt,
                      {.beams = kBeams, .max_tokens = 3, .length_penalty = penalty, .end_of_text = end});
      Best best;
      try_all(model, 3, end, penalty, {}, best);
      EXPECT_EQ(found.front().tokens, best.text) << end << ", " << penalty;
      EXPECT_NEAR(found.front().score, best.score, 1e-5);
      EXPECT_EQ(found.front().ended, best.text.back() == end);
    }
  }
}

TEST(BeamSearch, ScoresAreThoseOfTheTexts) {
  auto model = small_model();
  auto decoder = decoder_of(model, 4);
  const auto found =
      beam_search(decoder, kPrompt, {.beams = 4, .max_tokens = 8, .length_penalty = 0.7, .end_of_text = 2});
  ASSERT_EQ(found.size(), 4u);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i].score, score_of(model, found[i].tokens, 0.7), 1e-5);
    EXPECT_EQ(found[i].tokens.size(), found[i].logprobs.size());
    if (i > 0) {
      EXPECT_LE(found[i].score, found[i - 1].score);
    }
  }
}

TEST(BeamSearch, ATextWithoutTokensHasAScore) {
  auto model = small_model();
  auto decoder = decoder_of(model, 2);
  for (const auto& text : beam_search(decoder, kPrompt, {.beams = 2, .max_tokens = 0}))
    EXPECT_EQ(text.score, 0);
}

TEST(BeamSearch, OneBeamIsGreedy) {
  auto model = small_model();
  Generator generator(*model.backend, *model.engine, model.config, model.compute);
  Tokens greedy;
  generator.generate(kPrompt, {.temperature = 0, .max_tokens = 9}, 0, [&](const GeneratedToken& token) {
    greedy.push_back(token.id);
    return true;
  });
  const auto found = generator.search(kPrompt, {.beams = 1, .max_tokens = 9});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().tokens, greedy);
}

TEST(BeamSearch, StopsWhenAsked) {
  auto model = small_model();
  auto decoder = decoder_of(model, 3);
  const auto found = beam_search(decoder, kPrompt, {.beams = 3, .max_tokens = 9}, [] { return true; });
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found.front().tokens.size(), 1u);
}

TEST(BeamSearch, RefusesWhatDoesNotFit) {
  auto model = small_model();
  Generator generator(*model.backend, *model.engine, model.config, model.compute, 2);
  for (const std::int64_t tokens : {std::int64_t{11}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_THAT([&] { generator.search(kPrompt, {.beams = 2, .max_tokens = tokens}); },
                ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("10 tokens at most")));
  }
  EXPECT_THAT([&] { generator.search(Tokens(14, 1), {.beams = 2, .max_tokens = 0}); },
              ::testing::ThrowsMessage<UserError>(
                  ::testing::HasSubstr("14 tokens and the model sees 13; shorten it")));
  EXPECT_THROW(generator.search({}, {.beams = 2, .max_tokens = 1}), UserError);
  EXPECT_THROW(generator.search(kPrompt, {.beams = 3, .max_tokens = 1}), Error);
  generator.begin(kPrompt, {}, 0, [](const GeneratedToken&) { return true; });
  EXPECT_THROW(generator.search(kPrompt, {.beams = 1, .max_tokens = 1}), Error);
}

}  // namespace
}  // namespace shoal
