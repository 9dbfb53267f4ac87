// The parameters of tensor ranks and pipeline stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "model/boxes.h"
#include "model/units.h"
#include "ops/cpu/cpu.h"
#include "ops/kernels.h"
#include "ops/reference/reference.h"

namespace shoal::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const GptConfig kEven{.n_layer = 2, .n_head = 5, .n_embd = 80, .block_size = 8, .vocab_size = 64};

GptConfig without_bias(GptConfig config) {
  config.bias = false;
  return config;
}
GptConfig untied(GptConfig config) {
  config.tied = false;
  return config;
}

// f(config, tensor ranks) over even and uneven shares.
template <typename F>
void for_shares(F&& f) {
  for (const auto& config : {kUneven, without_bias(kUneven), untied(kUneven), kEven}) {
    for (int size = 1; size <= 5; ++size) f(config, size);
  }
}

std::vector<UnitSpec> units_of(const GptConfig& config, int rank, int size,
                               const std::vector<UnitRange>& chunks = {}) {
  return gpt_units(config, {.tensor = {.rank = rank, .size = size}, .chunks = chunks});
}

// The number of these ranks' boxes that contain each element of each parameter.
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

bool on_all_ranks(const std::string& name) {
  return name.find(".ln_") != std::string::npos || name.ends_with("wpe.weight") ||
         name.ends_with("c_proj.bias");
}

void expect_each(const std::vector<int>& counts, int expected, const std::string& name) {
  EXPECT_EQ(std::count(counts.begin(), counts.end(), expected), std::ssize(counts)) << name;
}

TEST(TensorShards, HaveEveryElementOnOneRankOrOnAll) {
  for_shares([](const GptConfig& config, int size) {
    Coverage coverage;
    for (int rank = 0; rank < size; ++rank) {
      for (const auto& unit : units_of(config, rank, size)) cover(coverage, unit);
    }
    for (const auto& unit : gpt_units(config)) {
      for (const auto& parameter : unit.parameters) {
        expect_each(coverage.at(parameter.name), on_all_ranks(parameter.name) ? size : 1, parameter.name);
      }
    }
  });
}

// Attention needs whole heads of q, k and v.
TEST(TensorShards, OfTheFusedProjectionAreHeadsOfEachOfItsParts) {
  const auto units = units_of(kUneven, 1, 2);  // heads 2, 3 and 4
  const auto& qkv = units[1].parameter("attn.c_attn.weight");
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
  EXPECT_THAT(units_of(kUneven, 0, 1)[1].parameter("attn.c_attn.weight").boxes(), SizeIs(1));
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
        const bool on_both_ends = name.ends_with("wte.weight") || name.ends_with("wpe.weight");
        expect_each(counts, (on_all_ranks(name) ? size : 1) * (on_both_ends ? 2 : 1), name);
      }
    }
  }
}

// All ranks of a group have the same layout, so that they can add common gradients and cut their buffers
// alike.
TEST(TensorShards, LieAtTheSamePlacesOnEveryRank) {
  for_shares([](const GptConfig& config, int size) {
    const auto first = units_of(config, 0, size);
    for (int rank = 0; rank < size; ++rank) {
      const auto units = units_of(config, rank, size);
      for (std::size_t u = 0; u < units.size(); ++u) {
        EXPECT_EQ(units[u].size, first[u].size);
        EXPECT_EQ(units[u].decayed, first[u].decayed);
        EXPECT_EQ(units[u].replicated, first[u].replicated);
        EXPECT_EQ(units[u].partial, first[u].partial);
        ASSERT_EQ(names(units[u]), names(first[u]));
        std::int64_t end = 0;
        for (std::size_t i = 0; i < units[u].parameters.size(); ++i) {
          const auto& parameter = units[u].parameters[i];
          EXPECT_EQ(parameter.offset, first[u].parameters[i].offset) << parameter.name;
          EXPECT_EQ(parameter.offset % 16, 0) << parameter.name;
          EXPECT_GE(parameter.offset, end) << parameter.name << " on rank " << rank << " of " << size;
          EXPECT_EQ(parameter.decay, parameter.offset < units[u].decayed) << parameter.name;
          end = parameter.offset + parameter.local_shape.count();
          // A rank has only these boxes, and padding of the vocabulary.
          std::int64_t held = 0;
          for (const auto& box : parameter.boxes()) held += box.shape.count();
          const std::int64_t padding = parameter.local_shape.count() - held;
          const bool classes = parameter.name.ends_with("wte.weight") || parameter.name == "lm_head.weight";
          EXPECT_TRUE(padding == 0 || (classes && padding < 16 * config.n_embd)) << parameter.name;
        }
        EXPECT_LE(end, units[u].size);
      }
    }
  });
}

TEST(TensorShards, KeepWhatRanksHaveInCommonInOneRange) {
  for_shares([](const GptConfig& config, int size) {
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
      EXPECT_THAT(in(units[0], units[0].partial), IsEmpty());
      EXPECT_EQ(in(units[2], units[2].replicated), common);
      EXPECT_EQ(in(units[2], units[2].partial), norms);
      EXPECT_EQ(in(units.back(), units.back().replicated), ln_f);
      EXPECT_EQ(in(units.back(), units.back().partial), ln_f);
    }
  });
}

TEST(TensorShards, OfTheVocabularyArePaddedToAlignedRowsOfLogits) {
  for (int rank = 0; rank < 3; ++rank) {  // 20, 20 and 21 classes
    const TensorRank tensor{.rank = rank, .size = 3};
    EXPECT_EQ(padded_vocabulary(kUneven, tensor), 32);
    EXPECT_EQ(units_of(kUneven, rank, 3)[0].parameter("wte.weight").local_shape, (Shape{32, 35}));
  }
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
