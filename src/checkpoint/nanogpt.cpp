#include "checkpoint/nanogpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"
#include "core/error.h"
#include "core/json_depth.h"
#include "core/json_integer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kArguments = "model_args", *kState = "model", *kGelu = "gelu";

// A file of either kind, and its model_args: whole numbers and booleans only, other values are null.
struct NanoGptFile {
  std::unique_ptr<TensorFile> file;
  json arguments;
  std::string gelu;  // "tanh", "erf", or "" where the file does not say
};

json arguments_of(const TorchFile& file) {
  const auto& pickle = file.pickle();
  const auto* found = pickle.find(pickle.root(), kArguments);
  if (!found || found->type != PickleType::dictionary) return {};
  json arguments = json::object();
  for (std::size_t i = 0; i < found->items.size(); i += 2) {
    const auto &key = pickle[found->items[i]], &value = pickle[found->items[i + 1]];
    if (key.type != PickleType::string) continue;
    auto& argument = arguments[std::string(key.text)];
    if (value.type == PickleType::integer) argument = value.integer;
    if (value.type == PickleType::boolean) argument = value.integer != 0;
  }
  return arguments;
}

json arguments_of(const SafetensorsFile& file) {
  const auto found = file.metadata().find(kArguments);
  if (found == file.metadata().end()) return {};
  const auto arguments = json::parse(found->second, nullptr, false);
  if (!arguments.is_object() || is_deeper(arguments)) {
    fail_user("{}: its metadata's {} is no JSON object", file.path().string(), kArguments);
  }
  return arguments;
}

NanoGptFile open_file_of_nanogpt(const fs::path& path) {
  NanoGptFile opened;
  MappedFile mapped(path);
  if (looks_like_torch(mapped.bytes())) {
    auto file = std::make_unique<TorchFile>(path, kState);
    opened.arguments = arguments_of(*file);
    opened.file = std::move(file);
  } else {
    auto file = std::make_unique<SafetensorsFile>(std::move(mapped));
    opened.arguments = arguments_of(*file);
    if (const auto gelu = file->metadata().find(kGelu); gelu != file->metadata().end())
      opened.gelu = gelu->second;
    opened.file = std::move(file);
  }
  if (opened.arguments.is_null()) {
    fail_user("{} has no {}, which describe the model in nanoGPT's checkpoints", path.string(), kArguments);
  }
  return opened;
}

WeightsModel model_of_nanogpt(const NanoGptFile& opened) {
  const auto path = opened.file->path().string();
  const auto size = [&](const char* key) {
    const auto found = opened.arguments.find(key);
    const int number = found == opened.arguments.end() ? 0 : integer_of<int>(*found).value_or(0);
    if (number < 1) fail_user("{}: its {} have no {} that is a possible size", path, kArguments, key);
    return number;
  };
  WeightsModel model{.n_layer = size("n_layer"),
                     .n_head = size("n_head"),
                     .n_embd = size("n_embd"),
                     .n_positions = size("block_size"),
                     .vocab_size = size("vocab_size"),
                     .gelu_tanh = opened.gelu == "tanh",
                     .gelu_is_given = !opened.gelu.empty()};
  if (model.n_embd % model.n_head != 0) {
    fail_user("{}: n_head = {} does not divide n_embd = {}", path, model.n_head, model.n_embd);
  }
  if (opened.gelu != "tanh" && opened.gelu != "erf" && !opened.gelu.empty()) {
    fail_user("{}: its metadata's {} is \"{}\", not tanh or erf", path, kGelu, opened.gelu);
  }
  const auto bias = opened.arguments.find("bias");
  if (bias != opened.arguments.end() && bias->is_boolean()) {
    model.bias = bias->get<bool>();
  } else {  // early checkpoints do not say
    model.bias = std::ranges::any_of(opened.file->tensors(),
                                     [](const auto& tensor) { return tensor.name.ends_with("ln_f.bias"); });
  }
  return model;
}

}  // namespace

WeightsModel read_nanogpt_model(const fs::path& file) { return model_of_nanogpt(open_file_of_nanogpt(file)); }

std::unique_ptr<WeightsReader> open_nanogpt(const fs::path& path) {
  auto opened = open_file_of_nanogpt(path);
  const auto model = model_of_nanogpt(opened);
  TensorFiles files;
  files.push_back(std::move(opened.file));
  return std::make_unique<WeightsReader>(std::move(files), model, LinearLayout::out_in, path, kArguments);
}

void write_nanogpt(const WeightsExport& what, SliceSource& from, const fs::path& file,
                   const ExportProgress& progress) {
  const auto& model = what.model;
  const nlohmann::ordered_json arguments = {{"n_layer", model.n_layer}, {"n_head", model.n_head},
                                            {"n_embd", model.n_embd},   {"block_size", model.n_positions},
                                            {"bias", model.bias},       {"vocab_size", model.vocab_size},
                                            {"dropout", what.dropout}};
  export_safetensors(
      what, weights_tensors(model), true, from, file,
      {{"format", "pt"}, {kArguments, arguments.dump()}, {kGelu, model.gelu_tanh ? "tanh" : "erf"}},
      progress);
}

std::uint64_t nanogpt_bytes(const WeightsExport& what) {
  auto tensors = weights_tensors(what.model);
  tensors.push_back(tensors.front());
  return stored_bytes(tensors, what.dtype);
}

}  // namespace shoal
