#include "train/model_io.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "config/layout.h"
#include "config/pretrained.h"
#include "core/error.h"
#include "core/json_integer.h"
#include "core/log.h"
#include "core/text.h"
#include "core/version.h"
#include "data/stored_tokenizer.h"
#include "ops/make_backend.h"

namespace shoal {
namespace {

using nlohmann::json;

// A field of the manifest that this program writes itself; what is missing or of another kind was not written
// by it.
template <typename T>
T field(const json& object, const char* key, const CheckpointReader& checkpoint) {
  try {
    const auto& value = object.at(key);
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      if (const auto number = integer_of<T>(value)) return *number;
      fail_user("{}: \"{}\" in its manifest is {}, not a possible whole number",
                checkpoint.directory().string(), key, value.dump());
    } else {
      return value.template get<T>();
    }
  } catch (const json::exception& error) {
    fail_user("{}: its manifest holds no usable \"{}\" ({}); it is not a checkpoint of a training run",
              checkpoint.directory().string(), key, error.what());
  }
}

// The same for a field that older versions did not write.
template <typename T>
T field_or(const json& object, const char* key, T otherwise, const CheckpointReader& checkpoint) {
  return object.contains(key) ? field<T>(object, key, checkpoint) : otherwise;
}

// A size of the model.
template <typename T>
T size_field(const json& model, const char* key, const CheckpointReader& checkpoint) {
  const auto size = field<T>(model, key, checkpoint);
  if (size < 1) {
    fail_user("{}: \"{}\" in its manifest is {}, and has to be at least 1", checkpoint.directory().string(),
              key, size);
  }
  return size;
}

// The folder in which the program was started, read then: a save may find it gone.
const std::string kStartedIn = [] {
  std::error_code gone;
  return std::filesystem::current_path(gone).string();
}();

}  // namespace

json model_to_json(const GptConfig& model) {
  return {{"n_layer", model.n_layer},
          {"n_head", model.n_head},
          {"n_embd", model.n_embd},
          {"block_size", model.block_size},
          {"vocab_size", model.vocab_size},
          {"bias", model.bias},
          {"gelu", model.gelu == Gelu::tanh ? "tanh" : "erf"},
          {"tie_embeddings", model.tied}};
}

CheckpointInfo make_checkpoint_info(const Config& config, const GptConfig& model, const TrainState& state,
                                    const std::string& tokenizer) {
  CheckpointInfo info;
  info.step = state.step;
  info.shoal_version = kVersion;
  info.config = to_toml(config);
  info.model = model_to_json(model);
  info.state = {{"tokens", state.tokens},
                {"train_seconds", state.train_seconds},
                {"loss_window", state.loss_window},
                {"skipped_steps", state.skipped_steps},
                {"tokenizer", tokenizer},
                // The data's folders may be relative to the folder in which the run was started.
                {"started_in", kStartedIn}};
  // JSON knows no infinity.
  if (state.evaluation_left) info.state["evaluation_left"] = true;
  if (state.workers_equal) info.state["workers_equal"] = true;
  if (state.evaluations_since_best > 0) info.state["evaluations_since_best"] = state.evaluations_since_best;
  if (state.best_val_loss < std::numeric_limits<double>::max())
    info.state["best_val_loss"] = state.best_val_loss;
  return info;
}

TrainState train_state_of(const CheckpointReader& checkpoint) {
  const auto& saved = checkpoint.info().state;
  const auto or_else = [&](const char* name, auto otherwise) {
    return field_or(saved, name, otherwise, checkpoint);
  };
  return {.step = checkpoint.info().step,
          .tokens = field<std::int64_t>(saved, "tokens", checkpoint),
          .best_val_loss = or_else("best_val_loss", std::numeric_limits<double>::infinity()),
          .train_seconds = field<double>(saved, "train_seconds", checkpoint),
          .loss_window = field<std::vector<double>>(saved, "loss_window", checkpoint),
          .skipped_steps = field<std::int64_t>(saved, "skipped_steps", checkpoint),
          .evaluation_left = or_else("evaluation_left", false),
          .evaluations_since_best = or_else("evaluations_since_best", std::int64_t{0}),
          .workers_equal = or_else("workers_equal", false)};
}

Config config_of(const CheckpointReader& checkpoint) {
  return stored_config(checkpoint.info().config, (checkpoint.directory() / kManifestName).string());
}

GptConfig model_of(const CheckpointReader& checkpoint) {
  const auto& model = checkpoint.info().model;
  auto config = to_gpt_config(config_of(checkpoint));
  config.n_layer = size_field<int>(model, "n_layer", checkpoint);
  config.n_head = size_field<int>(model, "n_head", checkpoint);
  config.n_embd = size_field<int>(model, "n_embd", checkpoint);
  if (config.n_embd % config.n_head != 0) {
    fail_user("{}: n_head = {} does not divide n_embd = {}; it is not the manifest of a training run",
              (checkpoint.directory() / kManifestName).string(), config.n_head, config.n_embd);
  }
  config.block_size = size_field<int>(model, "block_size", checkpoint);
  config.vocab_size = size_field<std::int64_t>(model, "vocab_size", checkpoint);
  config.bias = field<bool>(model, "bias", checkpoint);
  config.gelu = field<std::string>(model, "gelu", checkpoint) == "tanh" ? Gelu::tanh : Gelu::erf;
  config.tied = field_or(model, "tie_embeddings", true, checkpoint);
  return config;
}

std::unique_ptr<Tokenizer> tokenizer_of(const CheckpointReader& checkpoint) {
  const auto text = field<std::string>(checkpoint.info().state, "tokenizer", checkpoint);
  if (text.empty()) return nullptr;
  return tokenizer_from_json(json::parse(text, nullptr, false), checkpoint.directory());
}

WorkerSource one_model_of(CheckpointReader& checkpoint) {
  WorkerSource model(checkpoint);
  if (model.workers() > 1) log::info("the model is the mean of {} workers' models", model.workers());
  if (model.prefer(fmt::format("optimizer.{}.", kAverageState)))
    log::info("the model is the parameters' moving average");
  return model;
}

namespace {

TensorSlice slice_of(const StateTensor& tensor) {
  return {.name = tensor.name,
          .dtype = tensor.data.dtype,
          .global_shape = tensor.shape,
          .offset = tensor.box.offset,
          .shape = tensor.box.shape,
          .flat_begin = tensor.first,
          .flat_end = tensor.first + tensor.data.count()};
}

}  // namespace

std::vector<SliceView> state_slices(DataEngine& engine) {
  std::vector<SliceView> slices;
  for (const auto& tensor : engine.state(true, DataEngine::Share::to_save)) {
    slices.push_back({slice_of(tensor), {tensor.data.as<const std::byte>(), tensor.data.bytes()}});
  }
  return slices;
}

namespace {

template <typename Wanted>
void read_tensors(DataEngine& engine, Backend& backend, SliceSource& from, bool optimizer, Wanted&& wanted) {
  std::vector<std::byte> host;
  for (const auto& tensor : engine.state(optimizer, DataEngine::Share::held)) {
    if (!wanted(tensor)) continue;
    const auto& data = tensor.data;
    if (!backend.is_device_memory(data.data)) {
      from.read(slice_of(tensor), {data.as<std::byte>(), data.bytes()});
      continue;
    }
    host.resize(data.bytes());
    from.read(slice_of(tensor), host);
    backend.copy_from_host(data, host.data());
  }
}

}  // namespace

void read_state(DataEngine& engine, Backend& backend, SliceSource& from, bool optimizer) {
  read_tensors(engine, backend, from, optimizer, [](const StateTensor&) { return true; });
}

void read_parameters(DataEngine& engine, Backend& backend, SliceSource& from, ReadPart part) {
  read_tensors(engine, backend, from, false,
               [&](const StateTensor& tensor) { return tensor.adapter == (part == ReadPart::adapters); });
}

AdapterModel adapters_of(const GptConfig& model) {
  AdapterModel adapters{
      .rank = model.lora.rank, .alpha = model.lora.alpha, .dropout = model.lora.dropout, .layers = {}};
  for (int i = 0; i < kLinears; ++i) {
    if (model.lora.on(static_cast<Linear>(i))) adapters.layers.emplace_back(name_of(static_cast<Linear>(i)));
  }
  return adapters;
}

// The path from here to one of a run's data folders: the folder that had this name when the run was started,
// if it still exists.
static std::string data_dir_here(const CheckpointReader& checkpoint, const std::string& dir) {
  const auto& state = checkpoint.info().state;
  const auto path = [&](const char* key) {
    return std::filesystem::path(field_or(state, key, std::string(), checkpoint));
  };
  const auto then = state.contains("started_in") ? (path("started_in") / dir).lexically_normal()
                                                 : path("data_dir");  // of version 0.1
  std::error_code missing;
  const bool moved = !std::filesystem::is_directory(then, missing);
  return moved || std::filesystem::equivalent(then, dir, missing) ? dir : then.string();
}

bool has_gpt2_size(std::int64_t vocab_size) { return vocab_size == 50'257 || vocab_size == 50'304; }

void refuse_larger_vocabulary(const Dataset& data, std::int64_t model_vocab_size, std::string_view advice) {
  if (data.vocab_size() <= model_vocab_size) return;
  fail_user("{} has a vocabulary of {}, the model one of {}; {} data of the model's own tokenizer",
            data.dir().string(), data.vocab_size(), model_vocab_size, advice);
}

void warn_of_other_tokenizer(const Dataset& data, std::int64_t model_vocab_size,
                             const Tokenizer* model_tokenizer) {
  const bool known = model_tokenizer && data.has_tokenizer();
  const bool other = known ? json::parse(data.tokenizer_text()) != model_tokenizer->to_json()
                           : data.vocab_size() != model_vocab_size &&
                                 !(has_gpt2_size(data.vocab_size()) && has_gpt2_size(model_vocab_size));
  if (!other) return;
  log::warn("{} has a vocabulary of {}, the model one of {}: {}", data.dir().string(),
            with_commas(data.vocab_size()), with_commas(model_vocab_size),
            known ? "it was prepared with another tokenizer, so losses say nothing about the model"
                  : "was it prepared with the model's tokenizer?");
}

Config load_model_config(const std::filesystem::path& where, std::span<const std::string> overrides) {
  auto weights = weights_at(where);
  if (weights) weights = fetch_weights(*weights);
  const auto directory = weights ? where : find_checkpoint(where);
  Config config;
  if (weights) {
    config = weights_config(*weights, where);
  } else {
    const CheckpointReader checkpoint(directory);
    config = config_of(checkpoint);
    if (!config.data.dir.empty()) config.data.dir = data_dir_here(checkpoint, config.data.dir);
    std::map<std::string, double> dirs;
    for (const auto& [dir, weight] : config.data.dirs) dirs[data_dir_here(checkpoint, dir)] = weight;
    config.data.dirs = std::move(dirs);
  }
  config.parallel = {}, config.gossip = {};
  if (config.train.recompute_blocks.size() > 1) config.train.recompute_blocks.clear();  // of stages
  const Config saved = config;
  apply_arguments(config, overrides);
  if (config.train.backend != BackendKind::cuda && !config.fixed.contains("train.tf32"))
    config.train.tf32 = false;
  if (config.train.dtype != DType::bf16 && !config.fixed.contains("train.residual_dtype"))
    config.train.residual_dtype = DType::f32;
  if (!config.fixed.contains("train.gradient_dtype")) config.train.gradient_dtype = DType::f32;  // unused
  for (const auto& difference : diff(saved, config)) {
    if (difference.key == "model.gelu" && weights && !read_weights_model(*weights).gelu_is_given) continue;
    if (difference.key.starts_with("model.") || difference.key.starts_with("lora.")) {
      fail_user("{} = {} is fixed by the checkpoint {} ({}); leave it out", difference.key, difference.b,
                directory.string(), difference.a);
    }
  }
  validate(config);
  // Losses differ by rounding where micro-batches do, so the micro-batch must not depend on the ranks.
  if (config.train.micro_batch == 0) config.train.micro_batch = config.train.global_batch;
  return config;
}

std::filesystem::path find_checkpoint(const std::filesystem::path& where, Communicator& ranks) {
  std::string found;
  some_for_all(ranks, ranks.rank() == 0,
               [&] { found = (weights_at(where) ? where : find_checkpoint(where)).string(); });
  return broadcast_text(ranks, found);
}

LoadedModel load_model(const std::filesystem::path& directory, const Config& config, Communicator& group,
                       const BackendOptions& backend_options, Runtime::Use use, const AdjustPlan& adjust) {
  LoadedModel loaded;
  loaded.config = config;
  GptConfig model;
  std::unique_ptr<CheckpointReader> checkpoint;
  std::unique_ptr<SliceSource> source;
  all_or_none(group, [&] {
    if (const auto weights = weights_at(directory)) {
      source = open_weights(*weights, config);
      model = to_gpt_config(config);
      loaded.tokenizer = weights_tokenizer(*weights);
      return;
    }
    checkpoint = std::make_unique<CheckpointReader>(directory);
    model = model_of(*checkpoint);
    loaded.step = checkpoint->info().step;
    loaded.tokenizer = tokenizer_of(*checkpoint);
    source = std::make_unique<WorkerSource>(one_model_of(*checkpoint));
  });
  resolve_mesh(loaded.config, group.size());
  loaded.plan = make_plan(loaded.config, model);
  if (adjust) all_or_none(group, [&] { adjust(loaded.plan, loaded.tokenizer.get()); });
  auto& runtime = loaded.runtime.emplace(loaded.plan, group, backend_options);
  runtime.allocate(loaded.plan, use);
  all_or_none(group, [&] { read_state(runtime.engine(), runtime.backend(), *source, false); });
  runtime.engine().state_loaded();
  return loaded;
}

}  // namespace shoal
