#include "config/pretrained.h"

#include <algorithm>

#include "config/schema.h"
#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHuggingFace = "hf:", kBlockSize = "model.block_size";

// The keys that pretrained weights set.
constexpr std::string_view kModelKeys[] = {"model.n_layer", "model.n_head",        "model.n_embd",
                                           kBlockSize,      "model.vocab_size",    "model.bias",
                                           "model.gelu",    "model.tie_embeddings"};

Config config_of(const HuggingFaceModel& model, const std::string& where) {
  Config config;
  const auto set = [&](std::string_view key, const RawValue& value) {
    assign(*find_field(key), config, value, where);
  };
  set("model.n_layer", std::int64_t{model.n_layer});
  set("model.n_head", std::int64_t{model.n_head});
  set("model.n_embd", std::int64_t{model.n_embd});
  set(kBlockSize, std::int64_t{model.n_positions});
  set("model.vocab_size", model.vocab_size);
  set("model.bias", true);
  set("model.tie_embeddings", true);
  set("model.gelu", std::string(model.gelu_tanh ? "tanh" : "erf"));
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

std::optional<fs::path> hugging_face_folder(std::string_view from) {
  if (const auto otherwise = start_without_checkpoint(from)) return hugging_face_folder(*otherwise);
  if (!from.starts_with(kHuggingFace)) return std::nullopt;
  return fs::path(from.substr(kHuggingFace.size()));
}

bool model_is_given(const Origins& origins) {
  // Nearly all weights are tied, which the reader checks.
  return std::ranges::all_of(
      kModelKeys, [&](auto key) { return key == "model.tie_embeddings" || origins.contains(key); });
}

void take_hugging_face_model(const fs::path& folder, Config& config, Origins& origins) {
  const auto where = (folder / "config.json").string();
  const auto theirs = config_of(read_hugging_face_model(folder), where);
  const auto given = config.model;
  for (const auto key : kModelKeys) {
    if (const auto origin = origins.find(key); origin != origins.end())
      require_agreement(*find_field(key), config, theirs, origin->second, where);
  }
  config.model = theirs.model;
  config.model.preset = given.preset;
  config.model.dropout = given.dropout;
  if (origins.contains(kBlockSize)) config.model.block_size = given.block_size;
  for (const auto key : kModelKeys) origins.try_emplace(std::string(key), where);
}

HuggingFaceReader open_hugging_face(const fs::path& folder, const Config& config) {
  Config same = config;
  Origins all;
  for (const auto key : kModelKeys) all[std::string(key)] = "";
  take_hugging_face_model(folder, same, all);
  return HuggingFaceReader(folder);
}

bool is_hugging_face_folder(const fs::path& where) {
  std::error_code ignored;
  return fs::is_regular_file(where / "config.json", ignored);
}

Config hugging_face_config(const fs::path& folder) {
  Config config;
  Origins origins;
  take_hugging_face_model(folder, config, origins);
  config.run.name = "weights";
  config.data.dir = folder.string();
  config.train.steps = 1;
  config.train.global_batch = 4;
  return config;
}

std::unique_ptr<Tokenizer> hugging_face_tokenizer(const fs::path& folder) {
  if (!fs::exists(folder / "vocab.json") || !fs::exists(folder / "merges.txt")) return nullptr;
  return load_bpe_tokenizer(folder);
}

}  // namespace shoal
