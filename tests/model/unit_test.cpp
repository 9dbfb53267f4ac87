#include "model/unit.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/parameters.h"
#include "model/trainee.h"
#include "model/units.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;
using testing::SizeIs;
using testing::ThrowsMessage;

GptConfig sizes(int n_layer, int n_head, int n_embd, int block_size, std::int64_t vocab_size, bool bias) {
  return {.n_layer = n_layer,
          .n_head = n_head,
          .n_embd = n_embd,
          .block_size = block_size,
          .vocab_size = vocab_size,
          .bias = bias};
}
const GptConfig kSmall = sizes(2, 2, 24, 16, 61, true);

TEST(Units, GoFromTheEmbeddingOverTheBlocksToTheHead) {
  std::vector<std::string> unit_names;
  for (const auto& unit : gpt_units(kSmall)) unit_names.push_back(unit.name);
  EXPECT_THAT(unit_names, ElementsAre("embedding", "block.0", "block.1", "head"));
}

TEST(Units, HaveNanoGptsNamesWithDecayedParametersFirst) {
  const auto units = gpt_units(kSmall);
  EXPECT_THAT(names(units[0]), ElementsAre("transformer.wte.weight", "transformer.wpe.weight"));
  EXPECT_THAT(names(units[1]),
              ElementsAre("transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight",
                          "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight",
                          "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias",
                          "transformer.h.0.ln_2.weight", "transformer.h.0.ln_2.bias",
                          "transformer.h.0.attn.c_proj.bias", "transformer.h.0.mlp.c_proj.bias",
                          "transformer.h.0.attn.c_attn.bias", "transformer.h.0.mlp.c_fc.bias"));
  EXPECT_THAT(names(units[3]), ElementsAre("transformer.ln_f.weight", "transformer.ln_f.bias"));
}

TEST(Units, HaveTheMatrixOfAnUntiedHead) {
  GptConfig config = kSmall;
  config.tied = false;
  const auto units = gpt_units(config);
  EXPECT_THAT(names(units[3]),
              ElementsAre("lm_head.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"));
  EXPECT_EQ(units[3].parameter("lm_head.weight").shape, units[0].parameter("wte.weight").shape);
  EXPECT_GT(units[3].decayed, 0);
  EXPECT_EQ(gpt_units(config, {}, Decay::no_embeddings)[3].decayed, units[3].decayed);
  EXPECT_EQ(flops_per_token(config), flops_per_token(kSmall)) << "the embedding is only looked up";
}

TEST(Units, WithoutBiasHaveNone) {
  GptConfig config = kSmall;
  config.bias = false;
  for (const auto& unit : gpt_units(config)) {
    for (const auto& name : names(unit)) EXPECT_TRUE(name.ends_with(".weight")) << name;
  }
}

TEST(Units, WeightsAreOutByIn) {
  const auto units = gpt_units(kSmall);
  EXPECT_EQ(units[1].parameter("attn.c_attn.weight").shape, (Shape{72, 24}));
  EXPECT_EQ(units[1].parameter("attn.c_proj.weight").shape, (Shape{24, 24}));
  EXPECT_EQ(units[1].parameter("mlp.c_fc.weight").shape, (Shape{96, 24}));
  EXPECT_EQ(units[1].parameter("mlp.c_proj.weight").shape, (Shape{24, 96}));
  EXPECT_EQ(units[0].parameter("wte.weight").shape, (Shape{61, 24}));
  EXPECT_EQ(units[0].parameter("wpe.weight").shape, (Shape{16, 24}));
}

// Muon's.
TEST(Units, HiddenMatricesAreThoseOfTheLinearLayers) {
  for (const auto& unit : gpt_units(kSmall)) {
    for (const auto& parameter : unit.parameters) {
      const bool linear = parameter.name.find(".attn.") != std::string::npos ||
                          parameter.name.find(".mlp.") != std::string::npos;
      EXPECT_EQ(parameter.matrix, linear && parameter.name.ends_with(".weight")) << parameter.name;
    }
  }
}

TEST(Units, AnUnknownParameterIsAnError) {
  EXPECT_THROW(gpt_units(kSmall)[0].parameter("lm_head.weight"), Error);
}

// PyTorch's parameter counts of the released models and of nanoGPT's character models.
TEST(Units, CountParametersAsPublished) {
  const auto count = [](const GptConfig& config) { return parameter_count(gpt_units(config)); };
  EXPECT_EQ(count(kGpt2), 124'439'808);
  EXPECT_EQ(count(sizes(24, 16, 1024, 1024, 50257, true)), 354'823'168);
  EXPECT_EQ(count(sizes(36, 20, 1280, 1024, 50257, true)), 774'030'080);
  EXPECT_EQ(count(sizes(48, 25, 1600, 1024, 50257, true)), 1'557'611'200);
  // By hand: L (12 C^2 + 2 C) + (V + T + 1) C.
  EXPECT_EQ(count(sizes(6, 6, 384, 256, 65, false)), 6 * (12 * 384 * 384 + 2 * 384) + (65 + 256 + 1) * 384);
  EXPECT_EQ(count(sizes(4, 4, 128, 64, 65, false)), 4 * (12 * 128 * 128 + 2 * 128) + (65 + 64 + 1) * 128);
}

TEST(Units, CountFlopsByTheFormula) {
  EXPECT_DOUBLE_EQ(flops_per_token(kGpt2), 6.0 * 124'439'808 + 12.0 * 12 * 768 * 1024);
}

TEST(Units, ParametersLieAlignedApartAndWithinTheirUnit) {
  for (const GptConfig& config : {kSmall, sizes(1, 3, 21, 7, 5, true), kGpt2}) {
    for (const auto& unit : gpt_units(config)) {
      std::int64_t end = 0;
      for (const auto& parameter : unit.parameters) {
        EXPECT_GE(parameter.offset, end) << parameter.name;
        EXPECT_EQ(parameter.offset % 16, 0) << parameter.name;
        EXPECT_EQ(parameter.decay, parameter.shape.rank() >= 2) << parameter.name;
        EXPECT_EQ(parameter.decay, parameter.offset < unit.decayed) << parameter.name;
        end = parameter.offset + parameter.local_shape.count();
      }
      EXPECT_LE(end, unit.size) << unit.name;
    }
  }
}

TEST(Units, DecayIsOfMatricesOrAllOrLeavesEmbeddingsOut) {
  const auto decayed = [](Decay decay, int tensor_ranks) {
    std::vector<std::string> names;
    for (const auto& unit :
         gpt_units(kSmall, {.tensor = {.rank = 0, .size = tensor_ranks}, .chunks = {}}, decay)) {
      for (const auto& parameter : unit.parameters) {
        EXPECT_EQ(parameter.decay, parameter.offset < unit.decayed) << parameter.name;
        // The decayed parameters are one range, for every choice of decay.
        const auto in = [&](const ElementRange& range) {
          return parameter.offset >= range.begin && parameter.offset < range.end;
        };
        // Hidden matrices come first.
        EXPECT_EQ(parameter.matrix, parameter.offset < unit.matrices) << parameter.name;
        EXPECT_EQ(parameter.matrix, parameter.shape.rank() == 2 && unit.name.starts_with("block"));
        EXPECT_EQ(in(unit.replicated), parameter.placement.replicated()) << parameter.name;
        EXPECT_EQ(in(unit.partial), parameter.placement.partial) << parameter.name;
        if (parameter.decay) names.push_back(parameter.name);
      }
    }
    std::ranges::sort(names);
    return names;
  };
  std::vector<std::string> all, matrices, no_embeddings;
  for (const auto& unit : gpt_units(kSmall)) {
    for (const auto& parameter : unit.parameters) {
      const auto& [name, shape] = std::tie(parameter.name, parameter.shape);
      all.push_back(name);
      if (shape.rank() == 1) continue;
      matrices.push_back(name);
      if (name != "transformer.wte.weight" && name != "transformer.wpe.weight") no_embeddings.push_back(name);
    }
  }
  for (auto* names : {&all, &matrices, &no_embeddings}) std::ranges::sort(*names);
  for (const int tensor_ranks : {1, 2}) {
    EXPECT_EQ(decayed(Decay::all, tensor_ranks), all);
    EXPECT_EQ(decayed(Decay::matrices, tensor_ranks), matrices);
    EXPECT_EQ(decayed(Decay::no_embeddings, tensor_ranks), no_embeddings);
  }
}

TEST(Units, OnlyTheVocabularyIsPadded) {
  for (const auto& unit : gpt_units(kSmall)) {
    for (const auto& parameter : unit.parameters) {
      const Shape expected = parameter.name.ends_with("wte.weight") ? Shape{64, 24} : parameter.shape;
      EXPECT_EQ(parameter.local_shape, expected) << parameter.name;
    }
  }
  EXPECT_EQ(padded_vocabulary(kGpt2), 50272);
}

TEST(Parameters, AreFoundInTheBufferOfTheirUnit) {
  const auto units = gpt_units(kSmall);
  std::vector<float> memory(static_cast<std::size_t>(units[1].size));
  const UnitView view{&units[1], {memory.data(), DType::f32, {units[1].size}}};
  const BlockParameters block(units[1], true);
  const auto& fc = units[1].parameter("mlp.c_fc.bias");
  EXPECT_EQ(view[block.mlp_c_fc.bias].data, memory.data() + fc.offset);
  EXPECT_EQ(view[block.mlp_c_fc.bias].shape, fc.shape);
  EXPECT_FALSE(view[BlockParameters(units[1], false).mlp_c_fc.bias]);
}

TEST(Parameters, ThatAreMissingThrowWithTheirNamesAndTheirUnits) {
  GptConfig config = kSmall;
  config.bias = false;
  const auto units = gpt_units(config);
  EXPECT_NO_THROW(BlockParameters(units[1], false));
  EXPECT_THAT([&] { BlockParameters(units[1], true); },
              ThrowsMessage<Error>("unit block.0 has no parameter transformer.h.0.ln_1.bias"));
  EXPECT_THROW(EmbeddingParameters{units[1]}, Error);
  EXPECT_THROW(HeadParameters(units[0], false, true), Error);
}

std::vector<NamedValues> initial_values(std::unique_ptr<Backend> backend, const GptConfig& config) {
  Trainee trainee(std::move(backend), config);
  return trainee.parameters();
}

const Values& find(const std::vector<NamedValues>& all, std::string_view name_end) {
  return std::ranges::find_if(all, [&](const auto& p) { return p.name.ends_with(name_end); })->values;
}

TEST(InitialValues, DoNotDependOnThreads) {
  const auto alone = initial_values(make_cpu_backend(1), kSmall);
  for (const int threads : {2, 3}) {
    const auto together = initial_values(make_cpu_backend(threads), kSmall);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE((alone[i].values == together[i].values).min()) << alone[i].name;
    }
  }
}

// An element's initial value depends only on its parameter's name and its index there, not on the rest of the
// model or on padding.
TEST(InitialValues, DoNotDependOnTheRestOfTheModel) {
  GptConfig larger = kSmall;
  larger.vocab_size = 999;
  larger.block_size = 40;
  larger.bias = false;
  const auto one = initial_values(make_cpu_backend(1), kSmall);
  const auto other = initial_values(make_cpu_backend(1), larger);
  for (const auto& [name, values] : other) {
    const Values& same = find(one, name);
    const std::slice common(0, std::min(same.size(), values.size()), 1);
    EXPECT_TRUE((Values(values[common]) == Values(same[common])).min()) << name;
  }
}

TEST(InitialValues, AreThoseOfGpt2) {
  const GptConfig config = sizes(2, 2, 64, 64, 256, true);
  const auto initial = initial_values(make_cpu_backend(1), config);
  std::set<double> firsts;
  for (const auto& [name, values] : initial) {
    if (name.ends_with("bias")) {
      EXPECT_TRUE((values == 0.0).min()) << name;
    } else if (name.find(".ln_") != std::string::npos) {
      EXPECT_TRUE((values == 1.0).min()) << name;
    } else {
      // Five standard errors, of the mean (s / sqrt(n)) and of the standard deviation (s / sqrt(2 n)).
      const double s = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(2.0 * config.n_layer) : 0.02;
      const auto n = static_cast<double>(values.size());
      EXPECT_NEAR(values.sum() / n, 0, 5 * s / std::sqrt(n)) << name;
      EXPECT_NEAR(std::sqrt((values * values).sum() / n), s, 5 * s / std::sqrt(2 * n)) << name;
      firsts.insert(values[0] / s);
    }
  }
  EXPECT_THAT(firsts, SizeIs(10)) << "parameters share their values";
}

}  // namespace
}  // namespace shoal::test
