// Tensor-parallel ranks that share a model and its cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "comm/world.h"
#include "core/error.h"
#include "generate/generator.h"
#include "generate/tiny_model.h"
#include "ops/cpu/cpu.h"
#include "ops/reference/reference.h"

namespace shoal {
namespace {

using test::loss_of;
using test::TinyModel;
using Tokens = std::vector<std::int32_t>;

// 33 classes on two ranks are 16 and 17, which are padded to different lengths.
GptConfig config() {
  auto config = test::tiny_config();
  config.vocab_size = 33;
  return config;
}

const Tokens kSharedText = {3, 14, 15, 9, 26, 32, 8, 9, 7, 20, 0, 32, 31};

// The losses of kSharedText's tokens, of which the first five are read at once. The second of two texts.
std::vector<double> losses(Decoder& decoder) {
  std::vector<double> all;
  decoder.prefill(1, std::span(kSharedText).first(5),
                  [&](std::int64_t position, std::span<const float> logits) {
                    all.push_back(loss_of(logits, kSharedText[static_cast<std::size_t>(position) + 1]));
                  });
  for (std::size_t i = 5; i + 1 < kSharedText.size(); ++i) {
    decoder.extend(std::vector{Decoder::Token{1, kSharedText[i]}});
    all.push_back(loss_of(decoder.logits(1), kSharedText[i + 1]));
  }
  return all;
}

// Products are in double and stored as float32, and the ranks' partial sums are added in float32, so
// activations differ by a few units in the last place, 2^-24 each, as in decoder_test.cpp.
TEST(TensorDecoder, AgreesWithOneRank) {
  TinyModel whole(make_reference_backend(), DType::f32, nullptr, config());
  Decoder one(*whole.backend, *whole.engine, whole.config, DType::f32, 2);
  const auto expected = losses(one);
  for (const int ranks : {1, 2, 3}) {
    run_threads({.ranks = ranks}, [&](World& world) {
      TinyModel model(make_reference_backend(), DType::f32, &world.ranks, config());
      Decoder decoder(*model.backend, *model.engine, model.config, DType::f32, 2, model.tensor());
      if (world.ranks.rank() > 0) return decoder.follow();
      EXPECT_THAT(losses(decoder), ::testing::Pointwise(::testing::DoubleNear(16 * 0x1p-20), expected));
      decoder.dismiss();
    });
  }
}

TEST(TensorDecoder, CopiesATextOnAllRanks) {
  run_threads({.ranks = 2}, [&](World& world) {
    TinyModel model(make_cpu_backend(1), DType::bf16, &world.ranks, config());
    Decoder decoder(*model.backend, *model.engine, model.config, DType::bf16, 3, model.tensor());
    if (world.ranks.rank() > 0) return decoder.follow();
    decoder.prefill(1, std::span(kSharedText).first(7));
    decoder.prefill(2, std::span(kSharedText).first(11));
    decoder.copy(2, 1);
    EXPECT_EQ(decoder.length(2), 7);
    decoder.extend(std::vector<Decoder::Token>{{2, 9}, {1, 9}});
    EXPECT_THAT(decoder.logits(1), ::testing::ElementsAreArray(decoder.logits(2)));
    decoder.dismiss();
  });
}

TEST(TensorDecoder, ATextDoesNotDependOnThoseBesideIt) {
  constexpr int kTexts = 9;  // more than a product has rows
  run_threads({.ranks = 3}, [&](World& world) {
    TinyModel model(make_cpu_backend(1), DType::bf16, &world.ranks, config());
    Generator generator(*model.backend, *model.engine, model.config, DType::bf16, kTexts, model.tensor());
    if (world.ranks.rank() > 0) return generator.follow();
    const SampleOptions options{.temperature = 1.0, .top_k = 0, .max_tokens = 30};
    const auto begin = [&](int sample, Tokens& made) {
      generator.begin(std::span(kSharedText).first(static_cast<std::size_t>(1 + sample)), options, sample,
                      [&made](const GeneratedToken& token) {
                        made.push_back(token.id);
                        return true;
                      });
    };
    std::vector<Tokens> together(kTexts), alone(kTexts);
    for (int i = 0; i < kTexts; ++i) begin(i, together[static_cast<std::size_t>(i)]);
    while (generator.step() > 0) {
    }
    for (int i = 0; i < kTexts; ++i) {
      begin(i, alone[static_cast<std::size_t>(i)]);
      while (generator.step() > 0) {
      }
    }
    EXPECT_EQ(together, alone);
    generator.dismiss();
  });
}

TEST(TensorDecoder, AnErrorOfTheFirstRankEndsTheOthers) {
  EXPECT_THROW(run_threads({.ranks = 2},
                           [&](World& world) {
                             TinyModel model(make_cpu_backend(1), DType::f32, &world.ranks, config());
                             Decoder decoder(*model.backend, *model.engine, model.config, DType::f32, 1,
                                             model.tensor());
                             if (world.ranks.rank() > 0) return decoder.follow();
                             decoder.prefill(0, Tokens(99));
                           }),
               Error);
}

}  // namespace
}  // namespace shoal
