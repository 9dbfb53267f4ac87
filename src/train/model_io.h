// Models in checkpoints: what is written, and how it is read back.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/peft.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "checkpoint/worker_source.h"
#include "config/plan.h"
#include "data/dataset.h"
#include "data/tokenizer.h"
#include "ops/make_backend.h"
#include "train/runtime.h"

namespace shoal {

// The state of a run beside its tensors. Randomness is addressed, so there is no generator state but the
// step.
struct TrainState {
  std::int64_t step = 0;    // updates done
  std::int64_t tokens = 0;  // trained on
  double best_val_loss = std::numeric_limits<double>::infinity();
  double train_seconds = 0;         // spent in steps, over all its processes
  std::vector<double> loss_window;  // of the spike detector
  std::int64_t skipped_steps = 0;
  bool evaluation_left = false;  // the run was stopped in the evaluation of this step
  std::int64_t evaluations_since_best = 0;
  bool workers_equal = false;  // several workers had one model
};

nlohmann::json model_to_json(const GptConfig& model);

// The facts that a checkpoint holds beside its tensors; `tokenizer` is Tokenizer::to_json as text.
CheckpointInfo make_checkpoint_info(const Config& config, const GptConfig& model, const TrainState& state,
                                    const std::string& tokenizer);
// Throws UserError naming the checkpoint when it is not one of a run.
TrainState train_state_of(const CheckpointReader& checkpoint);
Config config_of(const CheckpointReader& checkpoint);
GptConfig model_of(const CheckpointReader& checkpoint);
std::unique_ptr<Tokenizer> tokenizer_of(const CheckpointReader& checkpoint);  // null when the data had none

// A checkpoint's tensors by their plain names: where it is of several workers their mean, and
// where it has the parameters' moving average that; the log says so.
WorkerSource one_model_of(CheckpointReader& checkpoint);

// Views of an engine's state, in its backend's memory.
std::vector<SliceView> state_slices(DataEngine& engine);

// Reads this rank's part of the parameters, and with `optimizer` of the moments, into the memory of the
// engine's backend. Throws UserError when `from` lacks one. engine.state_loaded() is to follow, on all ranks.
void read_state(DataEngine& engine, Backend& backend, SliceSource& from, bool optimizer);
// The parameters of adapters alone, or those of the rest.
enum class ReadPart { adapters, rest };
void read_parameters(DataEngine& engine, Backend& backend, SliceSource& from, ReadPart part);

// The adapters of a model, as adapter files describe them.
AdapterModel adapters_of(const GptConfig& model);

// A model ready for evaluation or sampling.
struct LoadedModel {
  Config config;  // the run's, with the overrides
  RunPlan plan;
  std::int64_t step = 0;
  std::unique_ptr<Tokenizer> tokenizer;  // null when the data had none
  std::optional<Runtime> runtime;
};

// The config of a checkpoint's run for use without training: on any ranks, unless `overrides`, which are
// `section.key=value` arguments, say so. `where` is a checkpoint, a folder of them, a run, or another
// program's weights (weights_at). A relative data.dir is found from everywhere, unless run and data were
// moved. Throws UserError when there is none, it is damaged, or an override changes the model.
Config load_model_config(const std::filesystem::path& where, std::span<const std::string> overrides = {});

// Whether token ids may be those of GPT-2: a vocabulary of 50,257, or padded to a multiple of 64 as in
// nanoGPT and llm.c.
bool has_gpt2_size(std::int64_t vocab_size);

// Throws UserError where data have more tokens than the model knows: "...; evaluate on data of the model's
// own tokenizer", where `advice` is "evaluate on".
void refuse_larger_vocabulary(const Dataset& data, std::int64_t model_vocab_size, std::string_view advice);

// Warns where data were prepared with another tokenizer than the model's, as far as that is known: a
// tokenizer that is null is not.
void warn_of_other_tokenizer(const Dataset& data, std::int64_t model_vocab_size,
                             const Tokenizer* model_tokenizer);

// find_checkpoint(where) on rank 0, for all ranks: a run that is still saving cannot give them different
// ones.
std::filesystem::path find_checkpoint(const std::filesystem::path& where, Communicator& ranks);

// The model of a checkpoint, or of another program's weights, on the ranks of `group`, as config.parallel
// spreads it. Collective. Throws UserError when it cannot be spread so.
// `adjust` may change the plan before memory is taken, alike on all ranks; the tokenizer may be null.
using AdjustPlan = std::function<void(RunPlan& plan, const Tokenizer* tokenizer)>;
LoadedModel load_model(const std::filesystem::path& checkpoint, const Config& config, Communicator& group,
                       const BackendOptions& options, Runtime::Use use, const AdjustPlan& adjust = {});

}  // namespace shoal
