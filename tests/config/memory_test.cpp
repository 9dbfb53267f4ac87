// The memory estimate of a run, compared with the allocations of engine and model, and with closed forms.
#include "config/memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/recording.h"
#include "config/layout.h"
#include "config/plan.h"
#include "core/error.h"
#include "generate/decoder.h"
#include "ops/cuda/cuda.h"
#include "ops/dry/dry_backend.h"
#include "parallel/data/data_engine.h"
#include "planner/dry_run.h"

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
  return estimate_memory(make_plan(config), RankCounts::as_threads(ranks));
}

std::string zero_setting(int zero) { return "parallel.zero=" + std::to_string(zero); }

// The backend's peak of allocated bytes on such a rank, without a step's batches: tokens and targets, 2 x 32
// of each, the step's number, the losses of all data ranks and three signals, all multiples of 64 bytes.
double allocated(const DryRun::Rank& rank, int data_ranks) {
  const double numbers = 64 + ((rank.passes * data_ranks + 3) * 8 + 63) / 64 * 64;
  return static_cast<double>(rank.allocated) - rank.passes * 2 * 2 * 32 * 4 - numbers;
}

TEST(Memory, IsWhatEngineAndModelAllocate) {
  const std::vector<std::vector<std::string>> modes = {
      {},
      {"train.dtype=bfloat16"},
      {"train.dtype=bfloat16", "train.residual_dtype=bfloat16"},
      {"train.dtype=bfloat16", "train.gradient_dtype=bfloat16"},
      {"run.deterministic=layout"},
      {"parallel.reduce_dtype=bfloat16"},
      {"train.recompute=gelu"},
      {"train.recompute=light"},
      {"train.recompute=block"}};
  for (auto settings : modes) {
    for (int zero = 0; zero <= 3; ++zero) {
      settings.push_back(zero_setting(zero));
      for (const int ranks : {1, 2, 4, 8}) {
        const auto memory = memory_of(settings, ranks);
        const auto run = dry_run(make_plan(config_of(settings, ranks)));
        // An empty arena takes one byte.
        EXPECT_NEAR(allocated(run.ranks.front(), ranks), memory.state() + memory.activations(), 5)
            << settings.front() << ", ZeRO-" << zero << ", " << ranks << " ranks";
      }
    }
  }
}

struct MeshCase {
  int ranks;
  std::vector<std::string> settings;
};
const std::vector<MeshCase> kMeshes = {
    {2, {"parallel.tensor=2"}},
    {4, {"parallel.tensor=4", "parallel.sequence=true"}},
    {4, {"parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true", "train.recompute=light"}},
    {3, {"parallel.tensor=3", "train.dtype=bfloat16"}},  // of 4 heads
    {2, {"parallel.pipeline=2", "train.recompute=light"}},
    {4, {"parallel.pipeline=4", "parallel.schedule=gpipe", "train.recompute=block"}},
    {6, {"parallel.pipeline=3", "parallel.schedule=interleaved", "parallel.chunks=2"}},
    {8, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1"}},
    {8, {"parallel.pipeline=2", "parallel.zero=3", "train.dtype=bfloat16"}},
    {8, {"parallel.tensor=2", "parallel.zero=2", "parallel.replicate=2"}},
    {8,
     {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true", "train.recompute=block",
      "run.deterministic=layout", "parallel.stages=4,2"}},
    {8, {"model.tie_embeddings=false", "parallel.pipeline=2", "parallel.tensor=2", "parallel.zero=3"}},
    {4, {"model.tie_embeddings=false", "parallel.pipeline=2", "run.deterministic=layout"}},
    {4, {"parallel.engine=gossip"}},
    {8, {"parallel.engine=gossip", "gossip.clip=bucket", "train.dtype=bfloat16", "gossip.bucket_mib=0.1"}},
    {4,
     {"parallel.engine=gossip", "gossip.topology=complete", "optim.name=accum_adamw", "optim.accum_steps=4",
      "run.deterministic=layout"}},
    {8, {"parallel.engine=gossip", "gossip.worker_size=2", "parallel.zero=3", "train.dtype=bfloat16"}},
    {8, {"parallel.engine=gossip", "gossip.worker_size=4", "parallel.zero=2", "parallel.replicate=2"}},
    {8,
     {"parallel.engine=gossip", "parallel.tensor=2", "parallel.sequence=true", "gossip.worker_size=2",
      "parallel.zero=1"}},
    {8, {"parallel.engine=gossip", "parallel.pipeline=4", "gossip.topology=ring"}},
};

TEST(Memory, OfEveryRankOfAMeshIsWhatItAllocates) {
  for (const auto& [ranks, settings] : kMeshes) {
    const auto config = config_of(settings, ranks);
    const auto model = to_gpt_config(config.model);
    const auto counts = RankCounts::as_threads(ranks);
    double most = 0;
    for (const auto& rank : dry_run(make_plan(config)).ranks) {
      const auto coordinate = coordinate_of(make_plan(config, model).mesh, rank.ranks.front());
      const auto memory = estimate_memory(make_plan(config, model), counts, coordinate);
      EXPECT_NEAR(allocated(rank, make_plan(config, model).mesh.data), memory.state() + memory.activations(),
                  8)
          << fmt::format("{}", fmt::join(settings, " ")) << ", "
          << to_string(coordinate, make_plan(config, model).mesh);
      most = std::max(most, memory.total());
    }
    EXPECT_EQ(estimate_memory(make_plan(config, model), counts).total(), most);
  }
}

// All activations of blocks, and the residual stream between them, are divided among tensor ranks: by heads,
// channels or tokens.
TEST(Memory, ActivationsFallWithTheTensorRanksUnderSequenceParallelism) {
  const std::vector<std::string> shape = {"model.n_head=8", "train.recompute=none"};
  const auto alone = memory_of(shape, 1);
  for (const int ranks : {2, 4, 8}) {
    auto settings = shape;
    settings.push_back(fmt::format("parallel.tensor={}", ranks));
    const auto whole_rows = memory_of(settings, ranks);
    settings.push_back("parallel.sequence=true");
    const auto memory = memory_of(settings, ranks);
    // Tensors are padded to 64 bytes.
    EXPECT_NEAR(memory.blocks * ranks / alone.blocks, 1, 0.01) << ranks;
    EXPECT_NEAR(memory.streams * ranks / alone.streams, 1, 0.01) << ranks;
    EXPECT_GT(whole_rows.blocks * ranks / alone.blocks, 1.2) << ranks;
    EXPECT_EQ(whole_rows.streams, alone.streams);
  }
}

// A model that consists mostly of its vocabulary: no allocation of a rank is as large as the whole matrix.
TEST(Memory, NoRankTakesAWholeParameterThatItShares) {
  const std::vector<std::string> settings = {
      "model.vocab_size=50257", "model.n_layer=2",   "model.n_head=8",  "model.n_embd=64",
      "model.block_size=8",     "parallel.tensor=8", "parallel.zero=3", "parallel.pipeline=2"};
  const auto config = config_of(settings, 64);
  const auto run = dry_run(make_plan(config));
  for (const auto& rank : run.ranks) EXPECT_LT(static_cast<double>(rank.allocated), 4.0 * 50257 * 64);

  const auto model = to_gpt_config(config.model);
  for (const auto& unit : gpt_units(model, make_plan(config, model).part({}))) {
    for (const auto& parameter : unit.parameters) {
      if (parameter.placement.replicated()) continue;
      // Rows of the vocabulary are padded to a multiple of 16.
      EXPECT_LE(parameter.local_shape.count(), parameter.shape.count() / 8 + 16 * 64) << parameter.name;
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
  // The buffers for gathered units: the embedding, two blocks, the head.
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

// Bytes of a checkpoint that a rank writes.
double written_by(const Config& config, const GptConfig& model, int rank) {
  DryBackend backend;
  Recording recording(make_plan(config, model).mesh.ranks(), rank);
  Mesh mesh(recording.ranks(), make_plan(config, model).mesh);
  const auto engine = std::make_unique<DataEngine>(
      backend, mesh, model, make_plan(config, model).engine_options(mesh.coordinate()));
  double bytes = 0;
  for (const auto& tensor : engine->state(true, DataEngine::Share::to_save)) {
    bytes += static_cast<double>(tensor.data.bytes());
  }
  return bytes;
}

// A rank writes its piece of every unit. All data ranks write as much, except for padding in the last piece.
TEST(Memory, TextsOfEvaluationsTakeTheDecodersMemory) {
  const auto plain = memory_of({}, 1), three = memory_of({"eval.samples=3"}, 1);
  const auto plan = make_plan(config_of({}, 1));
  EXPECT_EQ(three.total() - plain.total(),
            static_cast<double>(Decoder::memory_bytes(plan.model, plan.engine.compute, 3)));
  EXPECT_EQ(memory_of({"eval.samples=100"}, 1).texts, memory_of({"eval.samples=8"}, 1).texts);
  EXPECT_LT(memory_of({"eval.samples=3", "parallel.tensor=2"}, 2).texts, three.texts);
}

TEST(Memory, CheckpointCopyIsTheRanksShare) {
  auto layouts = kMeshes;
  for (int zero = 0; zero <= 3; ++zero) layouts.push_back({4, {zero_setting(zero)}});
  for (const auto& [ranks, settings] : layouts) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(settings, " ")));
    const auto config = config_of(settings, ranks);
    const auto model = to_gpt_config(config.model);
    const auto plan = make_plan(config, model);
    const auto& shape = plan.mesh;
    double all = 0;
    for (int stage = 0; stage < shape.pipeline; ++stage) {
      for (int tensor = 0; tensor < shape.tensor; ++tensor) {
        double written = 0, most = 0;
        for (int data = 0; data < shape.data; ++data) {
          const double bytes = written_by(config, model, (stage * shape.data + data) * shape.tensor + tensor);
          written += bytes;
          most = std::max(most, bytes);
        }
        const MeshCoordinate coordinate{.pipeline = stage, .data = 0, .tensor = tensor};
        const double share = written / shape.data, writer = std::min(share, 4.0 * (1 << 20));
        EXPECT_DOUBLE_EQ(estimate_memory(plan, RankCounts::as_threads(ranks), coordinate).checkpoint,
                         share + writer);
        EXPECT_LT(most / share, 1.1);
        all += written;
      }
    }
    // The ranks write each element once.
    EXPECT_EQ(all,
              (1 + plan.optimizer_tensors()) * 4.0 * static_cast<double>(parameter_count(gpt_units(model))));
  }
}

// Two states of the rank, and as much again for the copies of another host's.
TEST(Memory, CheckpointsInMemoryAreTwoStates) {
  for (const auto& [ranks, settings] : kMeshes) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, fmt::join(settings, " ")));
    auto with = settings;
    with.emplace_back("checkpoint.memory=true");
    const auto plan = make_plan(config_of(with, ranks));
    const auto here = estimate_memory(plan, RankCounts::as_threads(ranks), {});
    const auto off =
        estimate_memory(make_plan(config_of(settings, ranks)), RankCounts::as_threads(ranks), {});
    EXPECT_EQ(off.in_memory, 0);
    const double share =
        off.checkpoint - std::min(4.0 * (1 << 20), off.checkpoint / 2);  // without the writer
    EXPECT_DOUBLE_EQ(here.in_memory, 2 * share);
    EXPECT_NEAR(here.total() - off.total(), 2 * share, 1);  // byte
    const RankCounts two_hosts{.world_size = ranks, .local_size = ranks / 2, .threads = false};
    EXPECT_DOUBLE_EQ(estimate_memory(plan, two_hosts, {}).in_memory, 4 * share);
  }
}

TEST(Memory, CheckpointsInMemoryOfAGpuPassThroughACopy) {
  const auto in_memory = [](std::vector<std::string> settings) {
    settings.emplace_back("checkpoint.memory=true");
    settings.emplace_back("parallel.zero=1");
    return memory_of(settings, 2).in_memory;
  };
  const double states = in_memory({});
  EXPECT_EQ(in_memory({"train.backend=cuda"}), 1.5 * states);
  EXPECT_EQ(in_memory({"train.backend=cuda", "parallel.offload=host"}), states);
}

TEST(Memory, MemoryThatAKilledRunLeavesIsFreeAgain) {
  auto config = config_of({"checkpoint.memory=true"}, 1);
  config.model.n_layer = 1000;
  config.model.n_embd = 16384;
  config.model.n_head = 128;
  const auto plan = make_plan(config);
  EXPECT_THROW(check_memory(plan), UserError);
  check_memory(plan, {}, host_memory(plan));
}

TEST(Memory, StateOnDiskIsNotInMemory) {
  const auto memory = memory_of({"parallel.zero=2", "parallel.offload=disk"}, 2);
  const auto within = memory_of({"parallel.zero=2"}, 2);
  EXPECT_EQ(memory.weights + memory.optimizer, 0);
  EXPECT_GE(memory.on_disk, within.optimizer + within.weights / 2);
  EXPECT_LT(memory.total(), within.total());
}

// A backend with memory of its own, apart from the host's.
class DryGpu final : public DryBackend {
 public:
  void* allocate_host(std::size_t bytes) override {
    pinned_ += bytes;
    return DryBackend::allocate(bytes);
  }
  std::size_t pinned() const { return pinned_; }

 private:
  std::size_t pinned_ = 0;
};

// Beside the workspace of products: cuDNN's in bfloat16 without dropout, the mask's bits with it, or what the
// embedding's gradient needs.
TEST(Memory, OfAGpuIncludesTheScratchOfItsKernels) {
  const auto scratch = [](std::vector<std::string> settings, int positions = 128) {
    for (const auto* more : {"train.backend=cuda", "train.micro_batch=4"}) settings.emplace_back(more);
    settings.push_back(fmt::format("model.block_size={}", positions));
    const auto config = config_of(settings, 1);
    return estimate_memory(make_plan(config), RankCounts::as_threads(1), {}).scratch - kProductWorkspace;
  };
  constexpr double kEmbedding = 4 * 128 * (128 / 8 + 24);
  EXPECT_EQ(scratch({"train.dtype=float32"}), kEmbedding);
  constexpr double kHidden = 4.0 * 128 / 32 * (4 * 128) * 4;
  EXPECT_EQ(scratch({"train.dtype=bfloat16", "model.dropout=0.1"}), kHidden);
  constexpr double kSums = 4.0 * 4 * 2 * 256, kTiles = 10 * 2, kBits = 64 * 64 / 8;
  EXPECT_EQ(scratch({"train.dtype=bfloat16", "model.dropout=0.1", "model.n_head=2"}, 256),
            kSums + 4 * 2 * kTiles * kBits);
  EXPECT_EQ(scratch({"train.dtype=bfloat16", "model.dropout=0"}), 4.0 * 4 * 4 * 128 * 32);
  EXPECT_EQ(scratch({"train.dtype=bfloat16", "model.dropout=0", "run.deterministic=run"}),
            2.0 * 4 * 4 * 128 * 128);
}

TEST(Memory, OfAGpuIsNotTheHosts) {
  for (const std::string offload : {"none", "host", "disk"}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const std::string gradients = zero % 2 == 0 ? "float32" : "bfloat16";
      SCOPED_TRACE(fmt::format("{}, ZeRO {}, gradients in {}", offload, zero, gradients));
      auto config = config_of({"train.backend=cuda", "train.dtype=bfloat16", zero_setting(zero),
                               "train.gradient_dtype=" + gradients, "parallel.offload=" + offload,
                               "run.dir=" + testing::TempDir()},
                              2);
      config.run.name = "";
      const auto model = to_gpt_config(config.model);
      const auto counts = RankCounts::as_threads(2);
      const auto memory = estimate_memory(make_plan(config, model), counts, {});
      DryGpu backend;
      Recording recording(2, 0);
      Mesh mesh(recording.ranks(), make_plan(config, model).mesh);
      const auto engine = std::make_unique<DataEngine>(
          backend, mesh, model, make_plan(config, model).engine_options(mesh.coordinate()));
      // Empty arenas still take a byte.
      EXPECT_NEAR(static_cast<double>(backend.allocated() - backend.pinned()), memory.state(), 8);
      EXPECT_EQ(static_cast<double>(backend.pinned()), memory.on_host);
      EXPECT_EQ(memory.on_gpu, memory.state() + memory.activations() + memory.scratch + memory.cuda);
      EXPECT_EQ(memory.total() - memory.on_gpu,
                memory.on_host + memory.batches + memory.checkpoint + memory.program + memory.threads);
      EXPECT_EQ(memory.on_host > 0, offload != "none");
      EXPECT_EQ(memory.on_disk > 0, offload == "disk");
      if (offload == "host") {
        EXPECT_GE(memory.on_host, memory_of({zero_setting(zero)}, 2).optimizer);
      }
    }
  }
}

TEST(Memory, OfAHostIsThatOfItsRanks) {
  const auto host = [](const Config& config, const RankCounts& counts) {
    return host_memory(make_plan(config), counts);
  };
  const auto of = [](const Config& config, const RankCounts& counts, const MeshCoordinate& coordinate) {
    return estimate_memory(make_plan(config), counts, coordinate).total();
  };
  const auto data = config_of({}, 4);
  const auto threads = RankCounts::as_threads(4);
  const auto one = memory_of({}, 4);
  EXPECT_DOUBLE_EQ(host(data, threads), 4 * one.total() - 3 * one.program);  // the program is in memory once
  const RankCounts processes{.world_size = 4, .local_size = 4, .threads = false};
  EXPECT_DOUBLE_EQ(host(data, processes), 4 * of(data, processes, {}));

  const auto stages = config_of({"parallel.pipeline=2"}, 4);
  const double first = of(stages, processes, {}), second = of(stages, processes, {.pipeline = 1});
  EXPECT_GT(std::abs(first - second), 0.1 * first);
  EXPECT_DOUBLE_EQ(host(stages, processes), 2 * first + 2 * second);
  const RankCounts halves{.world_size = 4, .local_size = 2, .threads = false};
  EXPECT_DOUBLE_EQ(host(stages, halves),
                   2 * std::max(of(stages, halves, {}), of(stages, halves, {.pipeline = 1})));
}

TEST(Memory, RefusesRanksThatDoNotFitTogether) {
  const double available = available_memory();
  if (available == 0) GTEST_SKIP() << "this system does not say what is available";
  // A run that takes about half of the memory fits once, but not eight times.
  const auto layers =
      "model.n_layer=" + std::to_string(std::max(1, static_cast<int>(available / 2 / 16 / 3.2e6)));
  const std::vector<std::string> settings = {layers, "model.n_embd=512"};
  const auto check = [&](int ranks) {
    const auto config = config_of(settings, ranks);
    check_memory(make_plan(config), RankCounts::as_threads(ranks));
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
