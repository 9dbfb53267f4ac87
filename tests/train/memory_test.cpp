// What a run is said to take, against what engine and model allocate and against closed forms.
#include "train/memory.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/recording.h"
#include "core/error.h"
#include "ops/dry/dry_backend.h"
#include "train/dry_run.h"
#include "train/layout.h"

namespace shoal {
namespace {

constexpr const char* kConfig = R"(
data.dir = "none"
run.name = "dry"
[model]
n_layer = 6
n_head = 4
n_embd = 128
block_size = 32
vocab_size = 2000
[train]
global_batch = 32
micro_batch = 2
steps = 1
threads = 1
)";

Config config_of(std::vector<std::string> settings, int ranks) {
  auto config = parse_config(kConfig, "test", settings);
  resolve_layout(config, ranks);
  return config;
}

MemoryEstimate memory_of(const std::vector<std::string>& settings, int ranks) {
  const auto config = config_of(settings, ranks);
  return estimate_memory(config, to_gpt_config(config.model), RankPlaces::as_threads(ranks));
}

std::string zero_setting(int zero) { return "parallel.zero=" + std::to_string(zero); }

TEST(Memory, IsWhatEngineAndModelAllocate) {
  const std::vector<std::vector<std::string>> modes = {{},
                                                       {"train.dtype=bfloat16"},
                                                       {"run.deterministic=layout"},
                                                       {"parallel.reduce_dtype=bfloat16"},
                                                       {"train.recompute=block"}};
  for (auto settings : modes) {
    for (int zero = 0; zero <= 3; ++zero) {
      settings.push_back(zero_setting(zero));
      for (const int ranks : {1, 2, 4, 8}) {
        const auto memory = memory_of(settings, ranks);
        const auto run = dry_run(config_of(settings, ranks), ranks);
        // Beside them a batch of 2 x 32 tokens and targets, and 16 losses: each a multiple of 64 bytes.
        constexpr double kBatch = 2 * 2 * 32 * 4 + 16 * 8;
        // Empty arenas still take a byte.
        EXPECT_NEAR(static_cast<double>(run.ranks.front().allocated),
                    memory.state() + memory.activations() + kBatch, 5)
            << settings.front() << ", ZeRO-" << zero << ", " << ranks << " ranks";
      }
    }
  }
}

// With P parameters, in float32: 4 P each of weights and gradients, 8 P of moments.
TEST(Memory, FallsWithTheRanksAsStatesAreCut) {
  const auto units = gpt_units(to_gpt_config(config_of({}, 1).model));
  const auto sum = [&](std::size_t first, std::size_t last) {
    double elements = 0;
    for (std::size_t u = first; u < last; ++u) elements += static_cast<double>(units[u].size);
    return elements;
  };
  const double all = sum(0, units.size());
  // Where units come and go: the embedding, two blocks, the head.
  const double in_turns = sum(0, 3) + sum(units.size() - 1, units.size());
  for (const double ranks : {1.0, 2.0, 4.0, 8.0}) {
    const double expected[] = {16 * all, 8 * all + 8 * all / ranks, 4 * all + 4 * in_turns + 12 * all / ranks,
                               8 * in_turns + 16 * all / ranks};
    for (int zero = 0; zero <= 3; ++zero) {
      const auto memory = memory_of({zero_setting(zero)}, static_cast<int>(ranks));
      // Units are padded to a block of 1024 elements per rank: here by up to 6 %.
      const double state = memory.state() - memory.exchange;
      EXPECT_NEAR(state / expected[zero], 1, 0.06) << "ZeRO-" << zero << ", " << ranks << " ranks";
    }
  }
}

// A rank writes its piece of every unit, which is the same for all but what padding takes from the last.
TEST(Memory, CheckpointCopyIsTheRanksShare) {
  for (int zero = 0; zero <= 3; ++zero) {
    constexpr int kRanks = 4;
    const auto config = config_of({zero_setting(zero)}, kRanks);
    const auto model = to_gpt_config(config.model);
    double written = 0, most = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      DryBackend backend;
      Recording recording(kRanks, rank);
      Mesh mesh(recording.ranks());
      const auto engine = make_data_engine(backend, mesh, model, engine_options(config, model));
      double bytes = 0;
      for (const auto& tensor : engine->state(true, DataEngine::Share::to_save)) {
        bytes += static_cast<double>(tensor.data.bytes());
      }
      written += bytes;
      most = std::max(most, bytes);
    }
    const double share = written / kRanks, writer = 2 * std::min(share, 4.0 * (1 << 20));
    EXPECT_DOUBLE_EQ(estimate_memory(config, model, RankPlaces::as_threads(kRanks)).checkpoint,
                     share + writer);
    EXPECT_LT(most / share, 1.05);
  }
}

TEST(Memory, StateOnDiskIsNotInMemory) {
  const auto memory = memory_of({"parallel.zero=2", "parallel.offload=disk"}, 2);
  const auto within = memory_of({"parallel.zero=2"}, 2);
  EXPECT_EQ(memory.weights + memory.optimizer, 0);
  EXPECT_GE(memory.on_disk, within.optimizer + within.weights / 2);
  EXPECT_LT(memory.total(), within.total());
}

TEST(Memory, ThreadsOfAProcessHaveOneProgram) {
  const auto memory = memory_of({}, 4);
  EXPECT_DOUBLE_EQ(memory.total_of(4, true), 4 * memory.total() - 3 * memory.program);
  EXPECT_DOUBLE_EQ(memory.total_of(4, false), 4 * memory.total());
}

TEST(Memory, RefusesRanksThatDoNotFitTogether) {
  const double available = available_memory();
  if (available == 0) GTEST_SKIP() << "this system does not say what is available";
  // About half of what there is: fits once and not eight times.
  const auto layers =
      "model.n_layer=" + std::to_string(std::max(1, static_cast<int>(available / 2 / 16 / 3.2e6)));
  const std::vector<std::string> settings = {layers, "model.n_embd=512"};
  const auto check = [&](int ranks) {
    const auto config = config_of(settings, ranks);
    check_memory(config, to_gpt_config(config.model), RankPlaces::as_threads(ranks));
  };
  EXPECT_NO_THROW(check(1));
  try {
    check(8);
    FAIL() << "eight ranks fit";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("for 8 ranks on this host"), std::string::npos) << message;
    EXPECT_NE(message.find("parallel.zero=3"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace shoal
