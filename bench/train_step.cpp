// Times whole training steps (forward, backward, clip, AdamW) of a GPT on random tokens, as
// bench/peers/torch_gpt.py and torch_ranks.py do.
//   bench_train_step N_LAYER N_HEAD N_EMBD VOCAB BATCH POSITIONS DROPOUT float32|bfloat16 STEPS [THREADS]
//                    [--ranks N] [--tensor N] [--sequence] [--pipeline N] [--schedule NAME] [--chunks N]
//                    [--zero 0..3] [--micro SEQUENCES] [--layout] [--backend cpu|cuda] [--eager] [--muon]
//                    [--narrow]
// BATCH is that of all ranks, which are threads of this process, or processes under mpirun. A rank has
// THREADS threads (0: its share of the cores); a data rank takes its part of the batch at once, --micro cuts
// it finer, --eager launches what a GPU would play from a recording, --layout adds the gradients in the order
// that no layout changes and repeats every bit, --muon updates by Muon, and --narrow has the residual stream
// and gradients in DTYPE. Prints one line: median and minimum ms per step, tokens/s, share of the measured
// peak of all ranks together.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/philox.h"
#include "ops/graph_replay.h"
#include "ops/make_backend.h"
#include "parallel/backend_ranks.h"
#include "parallel/data/data_engine.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/stages.h"

using namespace shoal;

namespace {

constexpr int kWarmUp = 3;  // on a GPU: the second step is recorded

ScheduleKind schedule_of(std::string_view name) {
  for (const auto kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved}) {
    if (name == name_of(kind)) return kind;
  }
  fail_user("there is no schedule {}", name);
}

struct Settings {
  GptConfig model;
  std::int64_t batch = 0;
  DType compute = DType::f32;
  int steps = 0, threads = 0, ranks = 1, zero = 0;
  int tensor = 1, pipeline = 1, chunks = 1;
  bool sequence = false;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t micro = 0;
  bool layout = false, eager = false, muon = false, narrow = false;
  std::string backend = "cpu";
};

Settings read_settings(int argc, char** argv) {
  if (argc < 10) {
    fail_user(
        "usage: {} N_LAYER N_HEAD N_EMBD VOCAB BATCH POSITIONS DROPOUT DTYPE STEPS [THREADS] [--ranks N] "
        "[--tensor N] [--sequence] [--pipeline N] [--schedule NAME] [--chunks N] [--zero Z] "
        "[--micro SEQUENCES] [--layout] [--backend NAME] [--eager] [--muon] [--narrow]",
        argv[0]);
  }
  Settings settings;
  settings.model.n_layer = std::atoi(argv[1]);
  settings.model.n_head = std::atoi(argv[2]);
  settings.model.n_embd = std::atoi(argv[3]);
  settings.model.vocab_size = std::atoi(argv[4]);
  settings.batch = std::atoi(argv[5]);
  settings.model.block_size = std::atoi(argv[6]);
  settings.model.dropout = std::atof(argv[7]);
  settings.compute = std::strcmp(argv[8], "bfloat16") == 0 ? DType::bf16 : DType::f32;
  settings.steps = std::atoi(argv[9]);
  for (int i = 10; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--layout") {
      settings.layout = true;
    } else if (option == "--eager") {
      settings.eager = true;
    } else if (option == "--muon") {
      settings.muon = true;
    } else if (option == "--narrow") {
      settings.narrow = true;
    } else if (i == 10 && option[0] != '-') {
      settings.threads = std::atoi(argv[i]);
    } else if (option == "--ranks" && i + 1 < argc) {
      settings.ranks = std::atoi(argv[++i]);
    } else if (option == "--zero" && i + 1 < argc) {
      settings.zero = std::atoi(argv[++i]);
    } else if (option == "--micro" && i + 1 < argc) {
      settings.micro = std::atoi(argv[++i]);
    } else if (option == "--tensor" && i + 1 < argc) {
      settings.tensor = std::atoi(argv[++i]);
    } else if (option == "--sequence") {
      settings.sequence = true;
    } else if (option == "--pipeline" && i + 1 < argc) {
      settings.pipeline = std::atoi(argv[++i]);
    } else if (option == "--schedule" && i + 1 < argc) {
      settings.schedule = schedule_of(argv[++i]);
    } else if (option == "--backend" && i + 1 < argc) {
      settings.backend = argv[++i];
    } else if (option == "--chunks" && i + 1 < argc) {
      settings.chunks = std::atoi(argv[++i]);
    } else {
      fail_user("unknown argument {}", option);
    }
  }
  return settings;
}

// Sum over the ranks.
double sum(Communicator& ranks, double value) {
  ranks.all_reduce({&value, DType::f64, {1}}).wait();
  return value;
}

struct Timing {
  std::vector<double> seconds;  // of each step, in order of length
  double loss = 0;              // of all ranks
};

Timing time_steps(World& world, Backend& backend, Communicator& ranks, const Settings& settings) {
  const auto& config = settings.model;
  const std::int64_t positions = config.block_size, batch = settings.batch;
  const int data_ranks = world.ranks.size() / (settings.tensor * settings.pipeline);
  const std::int64_t micro = settings.micro > 0 ? settings.micro : batch / std::max(data_ranks, 1);
  if (data_ranks == 0 || micro == 0 || batch % (micro * data_ranks) != 0) {
    fail_user("{} data ranks with micro-batches of {} do not share {} sequences evenly", data_ranks, micro,
              batch);
  }
  Mesh mesh(ranks, {settings.pipeline, data_ranks, settings.tensor});
  EngineOptions options{.compute = settings.compute, .optimizer = {}, .grad_clip = 1.0};
  options.part.tensor = {mesh.coordinate().tensor, settings.tensor, settings.sequence && settings.tensor > 1};
  if (settings.pipeline > 1) {
    const auto ranges = balanced_ranges(config, settings.pipeline * settings.chunks);
    for (int chunk = 0; chunk < settings.chunks; ++chunk) {
      options.part.chunks.push_back(
          ranges[static_cast<std::size_t>(chunk * settings.pipeline + mesh.coordinate().pipeline)]);
    }
  }
  if (settings.muon) options.optimizer = MuonConfig{};
  options.zero = settings.zero;
  options.layout_exact = settings.layout;
  if (settings.narrow) options.gradients = settings.compute;
  options.micro_batches = static_cast<int>(batch / micro);
  const auto engine = std::make_unique<DataEngine>(backend, mesh, config, options);
  engine->initialize(1337);
  Pipeline model(backend, *engine, mesh, config,
                 {.batch = {micro, positions},
                  .compute = settings.compute,
                  .stream = settings.narrow ? settings.compute : DType::f32,
                  .logits = logits_plan(backend_kind(settings.backend).value(), settings.compute),
                  .part = options.part,
                  .schedule = settings.schedule,
                  .stages = settings.pipeline,
                  .micro_batches = engine->passes()});

  std::vector<std::int32_t> ids(static_cast<std::size_t>(batch * positions + 1));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto random = philox({1, 2}, {static_cast<std::uint32_t>(i), 0, 0, 0});
    ids[i] = static_cast<std::int32_t>(to_below(random, static_cast<std::uint64_t>(config.vocab_size)));
  }
  std::vector<double> losses(static_cast<std::size_t>(engine->passes()));
  Arena arena(backend, (ids.size() + 2 * losses.size() + 128) * sizeof(std::int32_t));
  const Tensor tokens = arena.take(DType::i32, {static_cast<std::int64_t>(ids.size())}),
               number = arena.take(DType::i32, {1}), loss_sums = arena.take(DType::f64, {engine->passes()});
  backend.copy_from_host(tokens, ids.data());
  const float scale = 1.0f / static_cast<float>(batch * positions);
  std::vector<TokenBatch> batches;
  for (int pass = 0; pass < engine->passes(); ++pass) {
    const std::int64_t first = (pass * data_ranks + engine->first_micro_batch()) * micro;
    auto* start = tokens.as<std::int32_t>() + first * positions;
    batches.push_back({.tokens = {start, DType::i32, {micro, positions}},
                       .targets = {start + 1, DType::i32, {micro, positions}},
                       .address = {.seed = 1337, .step = number.as<std::uint32_t>(), .first_sample = first}});
  }
  GraphReplay computing(backend, !settings.eager && world.ranks.size() == 1);
  std::vector<double> times;
  for (int step = 0; step < settings.steps + kWarmUp; ++step) {
    const Stopwatch watch;
    engine->begin_step(step + 1, {1e-4, step + 1});
    backend.copy_from_host(number, &step);
    computing([&] {
      backend.zero(loss_sums);
      model.train(batches, loss_sums, scale);
      engine->measure_gradient();
      engine->update();
    });
    engine->gradient_norm();  // waits for a GPU; on a CPU the update may end in the next step
    if (step >= kWarmUp) times.push_back(watch.seconds());
  }
  double loss = 0;
  backend.copy_to_host(losses.data(), loss_sums);
  if (model.has_loss() && mesh.coordinate().tensor == 0) {
    loss = std::accumulate(losses.begin(), losses.end(), 0.0) * static_cast<double>(scale);
  }
  std::ranges::sort(times);
  return {std::move(times), sum(world.ranks, loss)};
}

// The peak is measured when the model's memory is free again.
void run(World& world, const Settings& settings) {
  const auto backend = make_backend(backend_kind(settings.backend).value(),
                                    {.threads = settings.threads > 0 ? settings.threads : world.cores,
                                     .local_rank = world.local_rank,
                                     .tune = !settings.layout,
                                     .ordered = settings.layout});
  const auto [ranks, how] = connect_backends(*backend, world.ranks);
  if (world.ranks.rank() == 0 && !how.empty()) fmt::print(stderr, "between GPUs: {}\n", how);
  const auto [times, loss] = time_steps(world, *backend, *ranks, settings);
  const double peak = sum(world.ranks, backend->measure_peak_flops(settings.compute));
  if (world.ranks.rank() != 0) return;
  const double median = times[times.size() / 2],
               tokens = static_cast<double>(settings.batch * settings.model.block_size),
               flops = flops_per_token(settings.model) * tokens;
  fmt::print(
      "shoal {} ms/step median {:.2f} min {:.2f}  tokens/s {:.0f}  {:.1f} GFLOP/s = {:.1f} % of {:.1f}  loss "
      "{:.4f}\n",
      name_of(settings.compute), median * 1e3, times.front() * 1e3, tokens / median, flops / median * 1e-9,
      100 * flops / median / peak, peak * 1e-9, loss);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Settings settings = read_settings(argc, argv);
    const RankBody body = [&](World& world) { run(world, settings); };
    const bool alone = detect_launcher().kind == Launcher::Kind::alone;
    alone ? run_threads({.ranks = settings.ranks}, body) : run_mpi({}, body);
  } catch (const StoppedByPeer&) {
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return dynamic_cast<const UserError*>(&error) ? 2 : 1;
  }
}
