#include "train/worker_state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/worker_source.h"
#include "config/pretrained.h"
#include "core/error.h"
#include "core/json_integer.h"
#include "core/log.h"
#include "core/text.h"

namespace shoal {
namespace {

constexpr const char *kSkipped = "skipped_steps", *kWindow = "loss_window";

}  // namespace

std::vector<SliceView> worker_slices(DataEngine& engine, const MeshShape& shape,
                                     const MeshCoordinate& coordinate) {
  auto slices = state_slices(engine);
  if (shape.workers == 1) return slices;
  for (auto& [slice, data] : slices) slice.name = worker_tensor_name(coordinate.worker, slice.name);
  return slices;
}

void add_worker_states(CheckpointInfo& info, const TrainState& mine, Mesh& mesh) {
  const int workers = mesh.shape().workers;
  if (workers == 1) return;
  // Windows fill alike, but for steps that were skipped.
  auto most = static_cast<double>(mine.loss_window.size());
  mesh.world().all_reduce({&most, DType::f64, {1}}, ReduceOp::max).wait();
  const auto width = static_cast<std::size_t>(most) + 2;
  std::vector<double> all(width * static_cast<std::size_t>(workers));
  if (mesh.worker().rank() == 0) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(width) * mesh.coordinate().worker;
    first[0] = static_cast<double>(mine.skipped_steps);
    first[1] = static_cast<double>(mine.loss_window.size());
    std::ranges::copy(mine.loss_window, first + 2);
  }
  mesh.world().set_purpose("state of the workers");
  mesh.world().all_reduce({all.data(), DType::f64, {static_cast<std::int64_t>(all.size())}}).wait();
  auto states = nlohmann::json::array();
  for (auto first = all.begin(); first != all.end(); first += static_cast<std::ptrdiff_t>(width)) {
    const auto size = static_cast<std::ptrdiff_t>(first[1]);
    states.push_back({{kSkipped, static_cast<std::int64_t>(first[0])},
                      {kWindow, std::vector<double>(first + 2, first + 2 + size)}});
  }
  info.state[kWorkersField] = workers;
  info.state[kWorkerStatesField] = std::move(states);
}

namespace {

std::string count(int workers) { return workers == 1 ? "one model" : fmt::format("{} workers", workers); }

TrainState resume(CheckpointReader& checkpoint, DataEngine& engine, Backend& backend, const MeshShape& shape,
                  const MeshCoordinate& coordinate) {
  const int saved = workers_of(checkpoint);
  const bool own = saved == shape.workers;
  WorkerSource source(checkpoint, own ? coordinate.worker : WorkerSource::kMean);
  read_state(engine, backend, source, true);
  auto state = train_state_of(checkpoint);
  if (!own) {
    log::info("the checkpoint is of {} and this run of {}: {}", count(saved), count(shape.workers),
              saved == 1 ? "all start from its parameters and moments"
                         : "the start is the mean of the workers' parameters and moments");
  }
  if (!own || saved == 1) return state;
  try {
    const auto& states = checkpoint.info().state.at(kWorkerStatesField);
    const auto& mine = states.at(static_cast<std::size_t>(coordinate.worker));
    state.skipped_steps = integer_of<std::int64_t>(mine.at(kSkipped)).value_or(0);
    state.loss_window = mine.at(kWindow).get<std::vector<double>>();
  } catch (const nlohmann::json::exception& error) {
    fail_user("{}: its manifest holds no usable state of worker {} ({})", checkpoint.directory().string(),
              coordinate.worker, error.what());
  }
  return state;
}

// The first values of adapters: from peft's files, from the checkpoint that has the other parameters, or,
// where both have none, new ones, which are there already.
void read_adapters(const Config& config, DataEngine& engine, Backend& backend, SliceSource* checkpoint) {
  if (config.lora.rank == 0) return;
  if (config.lora.from.empty()) {
    if (checkpoint) read_parameters(engine, backend, *checkpoint, ReadPart::adapters);
    return;
  }
  PeftReader adapters(config.lora.from);
  const auto mine = adapters_of(to_gpt_config(config)), &theirs = adapters.model();
  if (mine.rank != theirs.rank || mine.alpha != theirs.alpha || mine.layers != theirs.layers) {
    fail_user(
        "the adapters in {} have lora.rank={} lora.alpha={} lora.targets={}; set these keys so, not {}, {} "
        "and {}",
        config.lora.from, theirs.rank, theirs.alpha, fmt::join(theirs.layers, ","), mine.rank, mine.alpha,
        fmt::join(mine.layers, ","));
  }
  adapters.require_blocks(config.model.n_layer);
  read_parameters(engine, backend, adapters, ReadPart::adapters);
  log::info("adapters from {}", config.lora.from);
}

}  // namespace

TrainState read_start(const Config& config, const std::filesystem::path& from, DataEngine& engine,
                      Backend& backend, const MeshShape& shape, const MeshCoordinate& coordinate) {
  if (const auto weights = weights_of_start(config.init.from)) {
    read_parameters(engine, backend, *open_weights(fetch_weights(*weights)), ReadPart::rest);
    read_adapters(config, engine, backend, nullptr);
    log::info("parameters from the weights in {}; the optimizer starts anew", from.string());
    return {};
  }
  const bool resuming = config.init.resumes();
  CheckpointReader checkpoint(from);
  TrainState state;
  if (resuming) {
    state = resume(checkpoint, engine, backend, shape, coordinate);
  } else {
    auto parameters = one_model_of(checkpoint);
    const auto adapters = adapters_of(model_of(checkpoint));
    if (adapters.rank > 0 && config.lora.rank == 0) {
      MergedSource merged(parameters, parameters, adapters);
      read_parameters(engine, backend, merged, ReadPart::rest);
      log::info("the checkpoint's adapters are merged into its weights");
    } else {
      read_parameters(engine, backend, parameters, ReadPart::rest);
      read_adapters(config, engine, backend, adapters.rank > 0 ? &parameters : nullptr);
    }
  }
  if (resuming) {
    log::info(
        "resumed from {}: {} of {} steps are done, {} tokens, best val loss {}",
        checkpoint.directory().string(), with_commas(state.step), with_commas(config.train.steps),
        with_commas(state.tokens),
        std::isfinite(state.best_val_loss) ? fmt::format("{:.4f}", state.best_val_loss) : "not measured");
  } else {
    log::info("parameters from {}, after step {}; the optimizer starts anew", checkpoint.directory().string(),
              with_commas(checkpoint.info().step));
  }
  return state;
}

}  // namespace shoal
