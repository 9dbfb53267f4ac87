#include "model/unit.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/error.h"
#include "model/trainee.h"

namespace shoal::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

GptConfig sizes(int n_layer, int n_head, int n_embd, int block_size, std::int64_t vocab_size, bool bias) {
  return {.n_layer = n_layer,
          .n_head = n_head,
          .n_embd = n_embd,
          .block_size = block_size,
          .vocab_size = vocab_size,
          .bias = bias};
}
const GptConfig kGpt2;  // the defaults are the 124M model's
const GptConfig kSmall = sizes(2, 2, 24, 16, 61, true);

std::vector<std::string> names(const UnitSpec& unit) {
  std::vector<std::string> result;
  for (const auto& parameter : unit.parameters) result.push_back(parameter.name);
  return result;
}

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

TEST(Units, WithoutBiasHaveNone) {
  GptConfig config = kSmall;
  config.bias = false;
  for (const auto& unit : gpt_units(config)) {
    for (const auto& name : names(unit)) EXPECT_TRUE(name.ends_with(".weight")) << name;
  }
}

TEST(Units, WeightsAreOutByIn) {
  const auto units = gpt_units(kSmall);
  EXPECT_EQ(units[1].parameter("c_attn.weight").shape, (Shape{72, 24}));
  EXPECT_EQ(units[1].parameter("attn.c_proj.weight").shape, (Shape{24, 24}));
  EXPECT_EQ(units[1].parameter("c_fc.weight").shape, (Shape{96, 24}));
  EXPECT_EQ(units[1].parameter("mlp.c_proj.weight").shape, (Shape{24, 96}));
  EXPECT_EQ(units[0].parameter("wte.weight").shape, (Shape{61, 24}));
  EXPECT_EQ(units[0].parameter("wpe.weight").shape, (Shape{16, 24}));
}

TEST(Units, AnUnknownParameterIsAnError) {
  EXPECT_THROW(gpt_units(kSmall)[0].parameter("lm_head.weight"), Error);
}

// What PyTorch counts for the released models and for nanoGPT's character models.
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

TEST(Units, OnlyTheVocabularyIsPadded) {
  for (const auto& unit : gpt_units(kSmall)) {
    for (const auto& parameter : unit.parameters) {
      const Shape expected = parameter.name.ends_with("wte.weight") ? Shape{64, 24} : parameter.shape;
      EXPECT_EQ(parameter.local_shape, expected) << parameter.name;
    }
  }
  EXPECT_EQ(padded_vocabulary(kGpt2), 50272);
}

TEST(UnitView, FindsParametersByTheEndOfTheirNames) {
  const auto units = gpt_units(kSmall);
  std::vector<float> memory(static_cast<std::size_t>(units[1].size));
  const UnitView view{&units[1], {memory.data(), DType::f32, {units[1].size}}};
  const auto& fc = units[1].parameter("mlp.c_fc.bias");
  EXPECT_EQ(view["c_fc.bias"].data, memory.data() + fc.offset);
  EXPECT_EQ(view["c_fc.bias"].shape, fc.shape);
  EXPECT_FALSE(view["lm_head.weight"]);
}

// Five heads of seven channels, 140 hidden channels, 61 classes: nothing divides by 2, 3 or 4.
const GptConfig kUneven = sizes(3, 5, 35, 12, 61, true);

GptConfig without_bias(GptConfig config) {
  config.bias = false;
  return config;
}

// f(config, tensor ranks) over even and uneven shares.
template <typename F>
void for_groups(F&& f) {
  for (const auto& config : {kUneven, without_bias(kUneven), sizes(2, 5, 80, 8, 64, true)}) {
    for (int size = 1; size <= 5; ++size) f(config, size);
  }
}

std::vector<UnitSpec> units_of(const GptConfig& config, int rank, int size,
                               const std::vector<UnitRange>& chunks = {}) {
  return gpt_units(config, {.tensor = {.rank = rank, .size = size}, .chunks = chunks});
}

// Calls f(element of the whole parameter) in the order in which a box has them.
template <typename F>
void for_elements(const ParameterSpec& parameter, const Box& box, F&& f) {
  const std::int64_t columns = parameter.shape[-1], width = box.shape[-1];
  for (std::int64_t i = 0; i < box.shape.count(); ++i) {
    const std::int64_t row = parameter.shape.rank() == 1 ? 0 : box.offset[0] + i / width;
    f(row * columns + box.offset[-1] + i % width);
  }
}

// How often each element of each parameter is in a box of one of these ranks.
using Coverage = std::map<std::string, std::vector<int>>;
void cover(Coverage& coverage, const UnitSpec& unit) {
  for (const auto& parameter : unit.parameters) {
    auto& counts = coverage[parameter.name];
    counts.resize(static_cast<std::size_t>(parameter.shape.count()));
    for (const auto& box : parameter.boxes()) {
      for_elements(parameter, box, [&](std::int64_t e) { ++counts[static_cast<std::size_t>(e)]; });
    }
  }
}

TEST(TensorShards, HaveEveryElementOnOneRankOrOnAll) {
  for_groups([](const GptConfig& config, int size) {
    Coverage coverage;
    for (int rank = 0; rank < size; ++rank) {
      for (const auto& unit : units_of(config, rank, size)) cover(coverage, unit);
    }
    std::int64_t elements = 0;
    for (const auto& unit : gpt_units(config)) {
      for (const auto& parameter : unit.parameters) {
        const bool everywhere = parameter.name.find(".ln_") != std::string::npos ||
                                parameter.name.ends_with("wpe.weight") ||
                                parameter.name.ends_with("c_proj.bias");
        EXPECT_THAT(coverage.at(parameter.name), Each(everywhere ? size : 1))
            << parameter.name << ", " << size << " ranks";
        elements += parameter.shape.count();
      }
    }
    EXPECT_EQ(elements, parameter_count(gpt_units(config)));
  });
}

// As the three products of attention need it: whole heads of q, of k and of v.
TEST(TensorShards, OfTheFusedProjectionAreHeadsOfEachOfItsParts) {
  const auto units = units_of(kUneven, 1, 2);  // heads 2, 3 and 4
  const auto& qkv = units[1].parameter("c_attn.weight");
  EXPECT_EQ(qkv.shape, (Shape{105, 35}));
  EXPECT_EQ(qkv.local_shape, (Shape{63, 35}));
  ASSERT_THAT(qkv.boxes(), SizeIs(3));
  for (int part = 0; part < 3; ++part) {
    const Box box = qkv.boxes()[static_cast<std::size_t>(part)];
    EXPECT_EQ(box.offset, (Shape{35 * part + 14, 0}));
    EXPECT_EQ(box.shape, (Shape{21, 35}));
  }
  const auto projection = units[1].parameter("attn.c_proj.weight").boxes();
  ASSERT_THAT(projection, SizeIs(1));
  EXPECT_EQ(projection[0].offset, (Shape{0, 14}));
  EXPECT_EQ(projection[0].shape, (Shape{35, 21}));
  EXPECT_THAT(units_of(kUneven, 0, 1)[1].parameter("c_attn.weight").boxes(), SizeIs(1));
}

TEST(PipelineStages, HaveEveryParameterOnOneStageButTheSharedMatrix) {
  const std::vector<std::vector<UnitRange>> stages = {{{0, 2}}, {{2, 3}}, {{3, 5}}};
  const std::vector<std::vector<UnitRange>> chunks = {{{0, 1}, {3, 4}}, {{1, 3}, {4, 5}}};
  for (const auto& pipeline : {stages, chunks}) {
    for (const int size : {1, 3}) {
      Coverage coverage;
      for (const auto& stage : pipeline) {
        for (int rank = 0; rank < size; ++rank) {
          const auto units = units_of(kUneven, rank, size, stage);
          const auto whole = units_of(kUneven, rank, size);
          ASSERT_EQ(units.size(), whole.size());
          for (std::size_t u = 0; u < units.size(); ++u) {
            EXPECT_EQ(units[u].name, whole[u].name);
            EXPECT_TRUE(units[u].size == 0 || units[u].size == whole[u].size);
            EXPECT_EQ(units[u].parameters.empty(), units[u].size == 0);
            cover(coverage, units[u]);
          }
        }
      }
      EXPECT_EQ(coverage.size(), 2 + 3 * 12 + 2);
      for (const auto& [name, counts] : coverage) {
        const bool on_all_ranks = name.find(".ln_") != std::string::npos || name.ends_with("c_proj.bias") ||
                                  name.ends_with("wpe.weight");
        const bool on_both_ends = name.find(".w") != std::string::npos &&
                                  name.find(".h.") == std::string::npos &&
                                  name.find(".ln_f") == std::string::npos;
        EXPECT_THAT(counts, Each((on_all_ranks ? size : 1) * (on_both_ends ? 2 : 1))) << name;
      }
    }
  }
}

// So that the ranks of a group can add what they have in common, and cut their buffers alike.
TEST(TensorShards, LieAtTheSamePlacesOnEveryRank) {
  for_groups([](const GptConfig& config, int size) {
    const auto first = units_of(config, 0, size);
    for (int rank = 0; rank < size; ++rank) {
      const auto units = units_of(config, rank, size);
      for (std::size_t u = 0; u < units.size(); ++u) {
        EXPECT_EQ(units[u].size, first[u].size);
        EXPECT_EQ(units[u].decayed, first[u].decayed);
        EXPECT_EQ(units[u].replicated, first[u].replicated);
        EXPECT_EQ(units[u].per_token, first[u].per_token);
        ASSERT_EQ(names(units[u]), names(first[u]));
        std::int64_t end = 0;
        for (std::size_t i = 0; i < units[u].parameters.size(); ++i) {
          const auto& parameter = units[u].parameters[i];
          EXPECT_EQ(parameter.offset, first[u].parameters[i].offset) << parameter.name;
          EXPECT_EQ(parameter.offset % 16, 0) << parameter.name;
          EXPECT_GE(parameter.offset, end) << parameter.name << " on rank " << rank << " of " << size;
          EXPECT_EQ(parameter.decay, parameter.offset < units[u].decayed) << parameter.name;
          end = parameter.offset + parameter.local_shape.count();
          // The boxes are all that it holds, but for padding of the vocabulary.
          std::int64_t held = 0;
          for (const auto& box : parameter.boxes()) held += box.shape.count();
          const std::int64_t padding = parameter.local_shape.count() - held;
          EXPECT_TRUE(padding == 0 ||
                      (parameter.name.ends_with("wte.weight") && padding < 16 * config.n_embd))
              << parameter.name;
        }
        EXPECT_LE(end, units[u].size);
      }
    }
  });
}

TEST(TensorShards, KeepWhatRanksHaveInCommonInOneRange) {
  for_groups([](const GptConfig& config, int size) {
    if (size == 1) return;
    const auto in = [](const UnitSpec& unit, const ElementRange& range) {
      std::set<std::string> found;
      for (const auto& parameter : unit.parameters) {
        const ElementRange here{parameter.offset, parameter.offset + parameter.local_shape.count()};
        const auto common = here & range;
        if (common.count() == 0) continue;
        EXPECT_EQ(common, here) << parameter.name << " is partly in the range";
        found.insert(parameter.name.substr(parameter.name.find('.') + 1));
      }
      return found;
    };
    std::set<std::string> norms = {"h.1.ln_1.weight", "h.1.ln_2.weight"}, ln_f = {"ln_f.weight"};
    if (config.bias) norms.insert({"h.1.ln_1.bias", "h.1.ln_2.bias"}), ln_f.insert("ln_f.bias");
    auto common = norms;
    if (config.bias) common.insert({"h.1.attn.c_proj.bias", "h.1.mlp.c_proj.bias"});
    for (int rank = 0; rank < size; ++rank) {
      const auto units = units_of(config, rank, size);
      EXPECT_THAT(in(units[0], units[0].replicated), ElementsAre("wpe.weight"));
      EXPECT_THAT(in(units[0], units[0].per_token), IsEmpty());
      EXPECT_EQ(in(units[2], units[2].replicated), common);
      EXPECT_EQ(in(units[2], units[2].per_token), norms);
      EXPECT_EQ(in(units.back(), units.back().replicated), ln_f);
      EXPECT_EQ(in(units.back(), units.back().per_token), ln_f);
    }
  });
}

TEST(TensorShards, OfTheVocabularyArePaddedToAlignedRowsOfLogits) {
  for (int rank = 0; rank < 3; ++rank) {  // 20, 20 and 21 classes
    const TensorPlace place{.rank = rank, .size = 3};
    EXPECT_EQ(padded_vocabulary(kUneven, place), 32);
    EXPECT_EQ(units_of(kUneven, rank, 3)[0].parameter("wte.weight").local_shape, (Shape{32, 35}));
  }
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

// An element's value is addressed by its parameter's name and its place there: what else is in the model, or
// how far the parameter is padded, changes nothing.
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

// Elements [first, first + n) of a box, as bits.
std::vector<std::uint32_t> drawn(Backend& backend, const ParameterSpec& parameter, const Box& box,
                                 std::int64_t first, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  initialize(backend, parameter, box, {values.data(), DType::f32, {n}}, first, 42);
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Rows, rows of three parts and columns of a parameter, and ranges of them that begin and end anywhere, as
// shards do.
TEST(InitialValues, AreTheSameBitsInEveryShard) {
  for (const auto& backend : {make_reference_backend(), make_cpu_backend(1)}) {
    for (int size = 1; size <= 5; ++size) {
      for (int rank = 0; rank < size; ++rank) {
        for (const auto& unit : units_of(kUneven, rank, size, {{0, 2}, {4, 5}})) {
          for (const auto& parameter : unit.parameters) {
            const auto whole = drawn(
                *backend, parameter,
                {.offset = parameter.shape.rank() == 1 ? Shape{0} : Shape{0, 0}, .shape = parameter.shape}, 0,
                parameter.shape.count());
            for (const auto& box : parameter.boxes()) {
              std::vector<std::uint32_t> expected;
              for_elements(parameter, box,
                           [&](std::int64_t e) { expected.push_back(whole[static_cast<std::size_t>(e)]); });
              const std::int64_t n = box.shape.count(), cuts[] = {0, 1, n / 3, n / 2 + 1, n - 1, n};
              for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) {
                const std::int64_t first = cuts[i], count = std::max<std::int64_t>(cuts[i + 1] - first, 0);
                const auto part = drawn(*backend, parameter, box, first, count);
                EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + first))
                    << parameter.name << " from " << first;
              }
              EXPECT_TRUE(drawn(*backend, parameter, box, 0, n) == expected) << parameter.name;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal::test
