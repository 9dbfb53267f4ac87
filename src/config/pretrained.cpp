#include "config/pretrained.h"

#include <algorithm>

#include "config/schema.h"
#include "core/error.h"
#include "data/hub.h"
#include "data/nanogpt_meta.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBlockSize = "model.block_size", kGelu = "model.gelu",
                           kTied = "model.tie_embeddings";

constexpr std::pair<std::string_view, WeightsFormat> kPrefixes[] = {{"hf:", WeightsFormat::hugging_face},
                                                                    {"nanogpt:", WeightsFormat::nanogpt},
                                                                    {"llmc:", WeightsFormat::llmc}};

// The keys that weights set.
constexpr std::string_view kModelKeys[] = {"model.n_layer",    "model.n_head", "model.n_embd", kBlockSize,
                                           "model.vocab_size", "model.bias",   kGelu,          kTied};

Config config_of(const WeightsModel& model, const std::string& where) {
  Config config;
  const auto set = [&](std::string_view key, const RawValue& value) {
    assign(*find_field(key), config, value, where);
  };
  set("model.n_layer", std::int64_t{model.n_layer});
  set("model.n_head", std::int64_t{model.n_head});
  set("model.n_embd", std::int64_t{model.n_embd});
  set(kBlockSize, std::int64_t{model.n_positions});
  set("model.vocab_size", model.vocab_size);
  set("model.bias", model.bias);
  set(kTied, model.tied);
  set(kGelu, std::string(model.gelu_tanh ? "tanh" : "erf"));
  return config;
}

// Throws UserError unless a given key agrees with the model.
void require_agreement(const Field& field, const Config& given, const Config& theirs,
                       const std::string& origin, const std::string& where) {
  const auto mine = field.value(given), needed = field.value(theirs);
  if (mine == needed) return;
  const auto said =
      fmt::format("{} = {}{}", field.name(), mine, origin.empty() ? "" : fmt::format(" ({})", origin));
  if (field.name() == kBlockSize) {
    if (given.model.block_size < theirs.model.block_size) return;
    fail_user("{} is more than the {} positions of {}; lower it, or leave it out", said, needed, where);
  }
  if (field.name() == "model.vocab_size" && given.model.vocab_size == 0) return;
  fail_user("{} does not fit the weights: {} has {}; leave it out", said, where, needed);
}

bool may_be_of_hub(const Weights& weights) {
  std::error_code ignored;
  return weights.format == WeightsFormat::hugging_face && is_hub_name(weights.path.string()) &&
         !fs::exists(weights.path, ignored);
}

Weights in_hub_cache(Weights weights) {
  if (!may_be_of_hub(weights)) return weights;
  if (auto folder = cached_hub_folder(weights.path.string(), HubOptions::from_environment()))
    weights.path = std::move(*folder);
  return weights;
}

}  // namespace

std::optional<std::string> start_without_checkpoint(std::string_view from) {
  if (from == "auto") return "scratch";
  constexpr std::string_view kAuto = "auto:";
  return from.starts_with(kAuto) ? std::optional<std::string>(from.substr(kAuto.size())) : std::nullopt;
}

std::optional<fs::path> checkpoint_folder(std::string_view from) {
  constexpr std::string_view kCheckpoint = "checkpoint:";
  if (!from.starts_with(kCheckpoint)) return std::nullopt;
  return fs::path(from.substr(kCheckpoint.size()));
}

std::optional<Weights> weights_of_start(std::string_view from) {
  if (const auto otherwise = start_without_checkpoint(from)) return weights_of_start(*otherwise);
  for (const auto& [prefix, format] : kPrefixes) {
    if (from.starts_with(prefix)) return in_hub_cache({format, from.substr(prefix.size())});
  }
  return std::nullopt;
}

Weights fetch_weights(const Weights& weights) {
  if (!may_be_of_hub(weights)) return weights;
  try {
    return {weights.format, hub_folder(weights.path.string(), HubOptions::from_environment())};
  } catch (const UserError& error) {
    fail_user("there is no folder {}, and the model of that name cannot be fetched from the hub: {}",
              weights.path.string(), error.what());
  }
}

std::optional<Weights> weights_at(const fs::path& where) {
  if (auto named = weights_of_start(where.string())) return named;
  return find_weights(where);
}

bool model_is_given(const Origins& origins) {
  // Nearly all weights are tied, as is the default.
  return std::ranges::all_of(kModelKeys, [&](auto key) { return key == kTied || origins.contains(key); });
}

void take_weights_model(const Weights& named, Config& config, Origins& origins) {
  const auto weights = fetch_weights(named);
  const auto where = weights.description().string();
  const auto model = read_weights_model(weights);
  const auto theirs = config_of(model, where);
  const auto given = config.model;
  const bool own_gelu = !model.gelu_is_given && origins.contains(kGelu);
  for (const auto key : kModelKeys) {
    if (key == kGelu && own_gelu) continue;
    if (const auto origin = origins.find(key); origin != origins.end())
      require_agreement(*find_field(key), config, theirs, origin->second, where);
  }
  config.model = theirs.model;
  config.model.preset = given.preset;
  config.model.dropout = given.dropout;
  if (origins.contains(kBlockSize)) config.model.block_size = given.block_size;
  if (own_gelu) config.model.gelu = given.gelu;
  for (const auto key : kModelKeys) origins.try_emplace(std::string(key), where);
}

std::unique_ptr<WeightsReader> open_weights(const Weights& weights, const Config& config) {
  Config same = config;
  Origins all;
  for (const auto key : kModelKeys) all[std::string(key)] = "";
  take_weights_model(weights, same, all);
  return open_weights(fetch_weights(weights));
}

Config weights_config(const Weights& weights, const fs::path& where) {
  Config config;
  Origins origins;
  take_weights_model(weights, config, origins);
  config.run.name = "weights";
  config.data.dir = where.string();
  config.train.steps = 1;
  config.train.global_batch = 4;
  return config;
}

std::unique_ptr<Tokenizer> weights_tokenizer(const Weights& weights) {
  const auto folder = weights.folder();
  if (weights.format == WeightsFormat::hugging_face)
    complete_hub_tokenizer(folder, HubOptions::from_environment());
  if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt"))
    return load_bpe_tokenizer(folder);
  if (fs::exists(folder / "meta.pkl")) return read_nanogpt_meta(folder / "meta.pkl");
  return nullptr;
}

}  // namespace shoal
