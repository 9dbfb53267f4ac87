// Generation on a GPU, where tokens are read by a graph that is replayed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "generate/decoder.h"
#include "generate/tiny_model.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"

namespace shoal::test {
namespace {

using Tokens = std::vector<std::int32_t>;

// Heads of 8 and 64 channels, which have other kernels.
GptConfig config_with(int heads, int channels) {
  auto config = tiny_config();
  config.n_layer = 1;  // an emulated GPU takes its time
  config.n_head = heads;
  config.n_embd = heads * channels;
  return config;
}

constexpr int kTexts = 10;  // more than a product has rows

Tokens text_of(int i) {
  Tokens text;
  for (int j = 0; j < 13; ++j) text.push_back((7 * i + 5 * j * j) % 61);
  return text;
}

// The logits behind some tokens of each text, which are read beside each other in changing order and number:
// by text, and then by position.
std::vector<std::vector<std::vector<float>>> all_logits(Decoder& decoder) {
  std::vector<std::vector<std::vector<float>>> all(kTexts);
  for (int i = 0; i < kTexts; ++i) {
    auto prompt = text_of(i);
    prompt.resize(static_cast<std::size_t>(1 + i % 4));
    decoder.prefill(i, prompt);
  }
  for (int step = 0; step < 5; ++step) {
    std::vector<Decoder::Token> next;
    for (int k = 0; k < kTexts; ++k) {
      const int i = (3 * k + step) % kTexts;
      if ((i + step) % kTexts == 0) continue;  // it pauses
      next.push_back({i, text_of(i)[static_cast<std::size_t>(decoder.length(i))]});
    }
    decoder.extend(next);
    for (const auto& [i, id] : next) {
      const auto logits = decoder.logits(i);
      all[static_cast<std::size_t>(i)].emplace_back(logits.begin(), logits.end());
    }
  }
  return all;
}

class CudaGeneration : public testing::TestWithParam<std::tuple<DType, GptConfig>> {
 protected:
  DType type_ = std::get<0>(GetParam());
  GptConfig config_ = std::get<1>(GetParam());
  TinyModel gpu_{make_cuda_backend(), type_, nullptr, config_};

  Decoder decoder(bool capture, int texts = kTexts) {
    return {*gpu_.backend, *gpu_.engine, config_, type_, texts, {}, capture};
  }
};

// Graphs give the bits of kernels that are launched one by one, and a text those that it has alone.
TEST_P(CudaGeneration, ATextDoesNotDependOnThoseBesideIt) {
  auto graphs = decoder(true), launches = decoder(false);
  const auto all = all_logits(graphs);
  EXPECT_EQ(all, all_logits(launches));
  for (const int i : {0, 5, 9}) {
    const auto text = text_of(i);
    const auto prompt = static_cast<std::size_t>(1 + i % 4);
    auto alone = decoder(true, 1);
    alone.prefill(0, std::span(text).first(prompt));
    for (std::size_t at = 0; at < all[static_cast<std::size_t>(i)].size(); ++at) {
      alone.extend(std::vector{Decoder::Token{0, text[prompt + at]}});
      const auto logits = alone.logits(0);
      ASSERT_EQ(all[static_cast<std::size_t>(i)][at], std::vector<float>(logits.begin(), logits.end()))
          << "text " << i << ", token " << at;
    }
  }
}

// The losses are of the order of 10, and those of a model that reads a wrong position differ by more than
// 0.1. Products sum up to 512 terms, so float32 moves them by 1e-4 at most, and a bfloat16 is rounded after
// each of some ten ops by 2^-9.
TEST_P(CudaGeneration, FollowsTheCpu) {
  TinyModel cpu(make_cpu_backend(1), type_, nullptr, config_);
  Decoder on_cpu(*cpu.backend, *cpu.engine, config_, type_);
  auto on_gpu = decoder(true, 1);
  const auto text = text_of(3);
  double gpu_loss = 0, cpu_loss = 0;
  for (auto* of : {&on_cpu, &on_gpu}) of->prefill(0, std::span(text).first(4));
  for (std::size_t at = 4; at + 1 < text.size(); ++at) {
    for (auto* of : {&on_cpu, &on_gpu}) of->extend(std::vector{Decoder::Token{0, text[at]}});
    gpu_loss += loss_of(on_gpu.logits(0), text[at + 1]);
    cpu_loss += loss_of(on_cpu.logits(0), text[at + 1]);
  }
  EXPECT_NEAR(gpu_loss, cpu_loss, cpu_loss * (type_ == DType::f32 ? 1e-4 : 0x1p-5));
}

INSTANTIATE_TEST_SUITE_P(, CudaGeneration,
                         testing::Values(std::tuple(DType::f32, config_with(3, 8)),
                                         std::tuple(DType::bf16, config_with(2, 64))),
                         [](const auto& test) {
                           return fmt::format("{}Channels{}", name_of(std::get<0>(test.param)),
                                              std::get<1>(test.param).head_size());
                         });

}  // namespace
}  // namespace shoal::test
