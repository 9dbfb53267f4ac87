// A short training run of a tiny model over a mesh of ranks in threads, and its whole outcome for every
// worker.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "comm/world.h"
#include "model/trainee.h"
#include "ops/cpu/cpu.h"
#include "parallel/backend_ranks.h"
#include "parallel/data/data_engine.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/stages.h"

namespace shoal::test {

inline AdamWConfig& adamw_of(EngineOptions& options) { return std::get<AdamWConfig>(options.optimizer); }
inline const AdamWConfig& adamw_of(const EngineOptions& options) {
  return std::get<AdamWConfig>(options.optimizer);
}

struct RanksRun {
  MeshShape mesh;
  bool sequence = false;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;        // ranges of units per stage
  EngineOptions engine;  // without the part of the model, which the run sets
  DType stream = DType::f32;
  bool same_data = false;  // all workers take the data of a single worker
  int steps = 10;
  int batches = 1000;  // number of different batches; then they repeat
  GptConfig model{.n_layer = 3,
                  .n_head = 2,
                  .n_embd = 12,
                  .block_size = 8,
                  .vocab_size = 61,
                  .dropout = 0.1,
                  .bias = true};
  Recompute recompute = Recompute::none;
  std::vector<int> recompute_blocks = {};
  bool trains = true;  // otherwise it can only evaluate
  double lr = 1e-2;
  int still_after = 1'000'000;  // steps, from where on the learning rate is 0
  int evaluate_every = 5;       // steps
  std::function<std::unique_ptr<Backend>(int rank)> backend = [](int) { return make_cpu_backend(1); };

  ModelPart part(const MeshCoordinate& coordinate) const {
    ModelPart part;
    part.tensor = {.rank = coordinate.tensor, .size = mesh.tensor, .sequence = sequence && mesh.tensor > 1};
    if (mesh.pipeline == 1) return part;
    const auto ranges = balanced_ranges(model, mesh.pipeline * chunks);
    for (int chunk = 0; chunk < chunks; ++chunk)
      part.chunks.push_back(ranges[static_cast<std::size_t>(chunk * mesh.pipeline + coordinate.pipeline)]);
    return part;
  }
  EngineOptions engine_options(const MeshCoordinate& coordinate) const {
    auto options = engine;
    options.training = trains;
    options.part = part(coordinate);
    return options;
  }
  PipelineOptions pipeline_options(const MeshCoordinate& coordinate) const {
    return {.batch = {1, model.block_size},
            .compute = engine.compute,
            .stream = stream,
            .recompute = recompute,
            .recompute_blocks = recompute_blocks,
            .backward = trains,
            .part = part(coordinate),
            .schedule = schedule,
            .stages = mesh.pipeline,
            .micro_batches = (engine.micro_batches + mesh.data - 1) / mesh.data};
  }
};

// A run with sums of a fixed order, to compare layouts.
inline RanksRun exact_run(const OptimizerOptions& optimizer, const MeshShape& mesh, int zero,
                          int replicate = 1) {
  RanksRun run;
  run.mesh = mesh;
  run.engine = {.optimizer = optimizer,
                .grad_clip = 0.1,
                .zero = zero,
                .replicate = replicate,
                .layout_exact = true,
                .micro_batches = 8};
  return run;
}

struct RunOutcome {
  std::vector<double> losses, norms;                             // of each step; as every rank saw them
  std::vector<double> evaluations, predictions;                  // losses, most likely tokens
  std::map<std::string, std::vector<float>, std::less<>> state;  // whole parameters and moments
  std::map<std::string, std::vector<int>, std::less<>> saved;    // on how many ranks each element is saved

  // The whole outcome as bytes, to compare.
  std::string bytes() const {
    std::string all;
    const auto append = [&](const auto& values) {
      all.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    };
    append(losses);
    append(norms);
    append(evaluations);
    append(predictions);
    for (const auto& [name, values] : state) append(values);
    return all;
  }
};

// Calls f(element of the tensor, element of the whole tensor) for each element on this rank.
template <typename F>
void for_elements(const StateTensor& tensor, F&& f) {
  const auto& [offset, shape] = tensor.box;
  const std::int64_t width = shape[-1];
  for (std::int64_t i = 0; i < tensor.data.count(); ++i) {
    const std::int64_t at = tensor.first + i;
    const std::int64_t row = shape.rank() == 1 ? 0 : offset[0] + at / width;
    f(static_cast<std::size_t>(i),
      static_cast<std::size_t>(row * tensor.shape[-1] + offset[-1] + at % width));
  }
}

// Copies a rank's parts into whole tensors, and counts the elements that it would save. Checks that replicas
// have the same bits.
inline void collect(RunOutcome& into, DataEngine& engine, Backend& backend) {
  const auto whole = [](auto& tensors, const StateTensor& tensor) -> auto& {
    auto& values = tensors[tensor.name];
    if (values.empty()) values.resize(static_cast<std::size_t>(tensor.shape.count()));
    return values;
  };
  static constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  for (const auto& tensor : engine.state(true, DataEngine::Share::held)) {
    const bool known = into.state.contains(tensor.name);
    auto& values = whole(into.state, tensor);
    if (!known) std::fill(values.begin(), values.end(), kNone);
    std::vector<float> mine(static_cast<std::size_t>(tensor.data.count()));
    if (backend.is_device_memory(tensor.data.data)) {
      backend.copy_to_host(mine.data(), tensor.data);
    } else {
      std::memcpy(mine.data(), tensor.data.data, tensor.data.bytes());
    }
    int differ = 0;
    for_elements(tensor, [&](std::size_t here, std::size_t there) {
      const float value = mine[here];
      if (!std::isnan(values[there]) && values[there] != value) ++differ;
      values[there] = value;
    });
    EXPECT_EQ(differ, 0) << "elements of " << tensor.name << ", of which ranks hold different ones";
  }
  for (const auto& tensor : engine.state(true, DataEngine::Share::to_save)) {
    auto& counts = whole(into.saved, tensor);
    for_elements(tensor, [&](std::size_t, std::size_t there) { ++counts[there]; });
  }
}

// A worker's share of the micro-batches: every `workers`-th of the global batch.
struct WorkerShare {
  int worker = 0, workers = 1;
};

// One rank of a run.
class RankOfRun {
 public:
  RankOfRun(const RanksRun& run, Communicator& ranks)
      : RankOfRun(run, ranks,
                  run.same_data
                      ? WorkerShare{}
                      : WorkerShare{coordinate_of(run.mesh, ranks.rank()).worker, run.mesh.workers}) {}
  RankOfRun(const RanksRun& run, Communicator& ranks, const WorkerShare& worker_share)
      : run_(run),
        share_(worker_share),
        backend_(run.backend(ranks.rank())),
        ranks_(connect_backends(*backend_, ranks).ranks),
        mesh_(*ranks_, run.mesh),
        engine_(std::make_unique<DataEngine>(*backend_, mesh_, run.model,
                                             run.engine_options(mesh_.coordinate()))),
        model_(*backend_, *engine_, mesh_, run.model, run.pipeline_options(mesh_.coordinate())),
        losses_(*backend_, DType::f64, {engine_->passes()}) {
    for (int pass = 0; pass < engine_->passes(); ++pass) {
      tokens_.emplace_back(*backend_, DType::i32, Shape{1, run.model.block_size});
      targets_.emplace_back(*backend_, DType::i32, Shape{1, run.model.block_size});
    }
    engine_->initialize(Trainee::kSeed);
  }

  DataEngine& engine() { return *engine_; }
  Backend& backend() { return *backend_; }
  Mesh& mesh() { return mesh_; }
  const MeshCoordinate& coordinate() const { return mesh_.coordinate(); }

  void step(int step, RunOutcome& outcome) {
    gradient(step, outcome);
    engine_->update();
    if ((step + 1) % run_.evaluate_every == 0) evaluate(step, outcome);
  }

  // Runs a step up to its update, with the loss multiplied by `factor`.
  void gradient(int step, RunOutcome& outcome, float factor = 1) {
    const auto data = batch(step);
    engine_->begin_step(step, {step < run_.still_after ? run_.lr : 0, step + 1});
    step_.set(static_cast<std::uint32_t>(step));
    std::vector<TokenBatch> batches;
    for (int pass = 0; pass < engine_->passes(); ++pass) batches.push_back(micro_batch(data, pass));
    backend_->zero(losses_);
    const float scale = 1.0f / static_cast<float>(count() * run_.model.block_size);
    model_.train(batches, losses_, factor * scale);
    engine_->measure_gradient();
    outcome.norms.push_back(engine_->gradient_norm());

    const Values of_passes = losses_.values();
    std::vector<double> losses(static_cast<std::size_t>(count()));
    for (int pass = 0; model_.has_loss() && pass < engine_->passes(); ++pass) {
      if (index(pass) < count())
        losses[static_cast<std::size_t>(index(pass))] = of_passes[static_cast<std::size_t>(pass)];
    }
    share(losses, model_.has_loss());
    outcome.losses.push_back(std::accumulate(losses.begin(), losses.end(), 0.0) * static_cast<double>(scale));
  }

  // Evaluates the worker's first micro-batch of the step, on all data ranks.
  void evaluate(int step, RunOutcome& outcome) {
    const auto data = batch(step);
    const std::int64_t first = in_batch(0) * run_.model.block_size;
    backend_->copy_from_host(tokens_[0], data.tokens.data() + first);
    backend_->copy_from_host(targets_[0], data.targets.data() + first);
    const Buffer loss(*backend_, DType::f64, {1});
    model_.evaluate({.tokens = tokens_[0], .targets = targets_[0], .address = {}}, loss);
    std::vector<double> found(static_cast<std::size_t>(1 + run_.model.block_size));
    if (model_.has_loss() && mesh_.coordinate().data == 0) {
      std::vector<std::int32_t> predictions(found.size() - 1);
      backend_->copy_to_host(predictions.data(), model_.predictions());
      found[0] = loss.values()[0];
      std::copy(predictions.begin(), predictions.end(), found.begin() + 1);
    }
    share(found, model_.has_loss() && mesh_.coordinate().data == 0);
    outcome.evaluations.push_back(found[0]);
    outcome.predictions.insert(outcome.predictions.end(), found.begin() + 1, found.end());
  }

 private:
  int count() const { return run_.engine.micro_batches; }
  // The index of a micro-batch among the worker's, and in the global batch.
  int index(int pass) const { return pass * run_.mesh.data + engine_->first_micro_batch(); }
  int in_batch(int index) const { return index * share_.workers + share_.worker; }

  Tokens batch(int step) const {
    return random_tokens(run_.model, count() * share_.workers,
                         static_cast<std::uint32_t>(step % run_.batches) + 1);
  }

  TokenBatch micro_batch(const Tokens& data, int pass) {
    const auto& tokens = tokens_[static_cast<std::size_t>(pass)];
    const auto& targets = targets_[static_cast<std::size_t>(pass)];
    const bool idle = index(pass) >= count();
    const std::int64_t first = idle ? 0 : in_batch(index(pass)) * run_.model.block_size;
    const std::vector<std::int32_t> ignored(static_cast<std::size_t>(run_.model.block_size), -1);
    backend_->copy_from_host(tokens, data.tokens.data() + first);
    backend_->copy_from_host(targets, idle ? ignored.data() : data.targets.data() + first);
    return {.tokens = tokens,
            .targets = targets,
            .address = {.seed = Trainee::kSeed, .step = step_.get(), .first_sample = in_batch(index(pass))}};
  }

  // Sums over the worker; one rank per tensor group contributes, because all of the group have the same
  // value.
  void share(std::vector<double>& values, bool knows) {
    const auto mine = values;
    if (mesh_.coordinate().tensor > 0) std::fill(values.begin(), values.end(), 0.0);
    mesh_.worker().all_reduce({values.data(), DType::f64, {static_cast<std::int64_t>(values.size())}}).wait();
    for (std::size_t i = 0; knows && i < values.size(); ++i) {
      if (mine[i] == 0) continue;
      EXPECT_EQ(mine[i], values[i]) << to_string(mesh_.coordinate(), mesh_.shape());
    }
  }

  const RanksRun& run_;
  WorkerShare share_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> ranks_;
  Mesh mesh_;
  std::unique_ptr<DataEngine> engine_;
  Pipeline model_;
  std::vector<Buffer> tokens_, targets_;  // by micro-batch of the step
  Scalar<std::uint32_t> step_{*backend_, 0};
  Buffer losses_;
};

// The body of a rank's run.
using RankSteps = std::function<void(RankOfRun& rank, RunOutcome& outcome)>;

// The outcomes of every worker.
inline std::vector<RunOutcome> train_workers(const RanksRun& run, const RankSteps& steps) {
  std::vector<RunOutcome> outcomes(static_cast<std::size_t>(run.mesh.workers));
  std::mutex mutex;
  run_threads({.ranks = run.mesh.ranks(), .deadline_seconds = 60}, [&](World& world) {
    RankOfRun rank(run, world.ranks);
    RunOutcome mine;
    steps(rank, mine);
    rank.engine().state(true, DataEngine::Share::held);  // workers finish an exchange together
    const std::lock_guard lock(mutex);
    auto& outcome = outcomes[static_cast<std::size_t>(rank.coordinate().worker)];
    collect(outcome, rank.engine(), rank.backend());
    if (outcome.losses.empty()) {
      outcome.losses = mine.losses;
      outcome.norms = mine.norms;
      outcome.evaluations = mine.evaluations;
      outcome.predictions = mine.predictions;
    } else {
      EXPECT_EQ(mine.losses, outcome.losses);
      EXPECT_EQ(mine.norms, outcome.norms);
      EXPECT_EQ(mine.evaluations, outcome.evaluations);
    }
  });
  for (const auto& outcome : outcomes) {
    for (const auto& [name, counts] : outcome.saved)
      EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int n) { return n == 1; }))
          << name << " is not saved once";
  }
  return outcomes;
}
inline std::vector<RunOutcome> train_workers(const RanksRun& run) {
  return train_workers(run, [&](RankOfRun& rank, RunOutcome& outcome) {
    for (int step = 0; step < run.steps; ++step) rank.step(step, outcome);
  });
}
// The outcome of a run with one worker.
inline RunOutcome train(const RanksRun& run) { return std::move(train_workers(run).front()); }

}  // namespace shoal::test
