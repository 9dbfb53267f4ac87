// config.json of a GPT-2, and the tensors that follow from it.
#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "checkpoint/huggingface.h"
#include "core/error.h"
#include "core/json_depth.h"
#include "core/json_integer.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr const char* kConfigName = "config.json";
constexpr std::uint64_t kMaxConfig = 1 << 20;
constexpr double kEpsilon = 1e-5;

// The keys of one file, and what Shoal makes of them.
class ConfigFile {
 public:
  explicit ConfigFile(fs::path path) : path_(std::move(path)) {
    try {
      json_ = json::parse(read_text(path_, kMaxConfig));
    } catch (const json::exception& error) {
      fail_user("{} is damaged, it is not JSON: {}", path_.string(), error.what());
    }
    if (!json_.is_object()) fail_user("{} is damaged: it is not a JSON object", path_.string());
    if (is_deeper(json_))
      fail_user("{} is damaged: its values are nested more than {} deep", path_.string(), kDeepestJson);
  }

  WeightsModel model() const {
    check_kind();
    WeightsModel model{.n_layer = size("n_layer"),
                       .n_head = size("n_head"),
                       .n_embd = size("n_embd"),
                       .n_positions = size(json_.contains("n_positions") ? "n_positions" : "n_ctx"),
                       .vocab_size = size("vocab_size"),
                       .gelu_tanh = gelu_is_tanh(),
                       .tied = is_tied()};
    if (model.n_embd % model.n_head != 0) {
      fail_user("{}: n_head = {} does not divide n_embd = {}", path_.string(), model.n_head, model.n_embd);
    }
    if (const auto* inner = given("n_inner"); inner && *inner != 4 * std::int64_t{model.n_embd}) {
      refuse("n_inner", *inner, fmt::format("{}, four times n_embd", 4 * std::int64_t{model.n_embd}));
    }
    return model;
  }

 private:
  // Nothing where the key is missing or null.
  const json* given(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const char* key, const json& value, const std::string& need) const {
    fail_user("{}: {} = {}, but Shoal's GPT-2 needs {}", path_.string(), key, value.dump(), need);
  }

  int size(const char* key) const {
    const auto* value = given(key);
    if (!value) fail_user("{} has no {}; is it the config of a GPT-2?", path_.string(), key);
    const int size = integer_of<int>(*value).value_or(0);
    if (size < 1) fail_user("{}: {} = {} is no possible size", path_.string(), key, value->dump());
    return size;
  }

  bool gelu_is_tanh() const {
    const auto* value = given("activation_function");
    if (!value || *value == "gelu_new" || *value == "gelu_pytorch_tanh") return true;
    if (*value != "gelu") refuse("activation_function", *value, "gelu_new, gelu_pytorch_tanh or gelu");
    return false;
  }

  bool is_tied() const {
    const auto* value = given("tie_word_embeddings");
    if (value && !value->is_boolean()) refuse("tie_word_embeddings", *value, "true or false");
    return !value || value->get<bool>();
  }

  void check_kind() const {
    const auto* type = given("model_type");
    if (!type || *type != "gpt2") {
      fail_user("{}: model_type is {}, but only gpt2 can be read", path_.string(),
                type ? type->dump() : "not given");
    }
    const auto* epsilon = given("layer_norm_epsilon");
    // Written from a float32, 1e-5 has other digits.
    if (epsilon && !(epsilon->is_number() && std::abs(epsilon->get<double>() / kEpsilon - 1) < 1e-6)) {
      refuse("layer_norm_epsilon", *epsilon, fmt::format("{}", kEpsilon));
    }
    if (const auto* value = given("scale_attn_weights"); value && *value != true) {
      refuse("scale_attn_weights", *value, "true");
    }
    for (const char* key :
         {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
      if (const auto* value = given(key); value && *value != false) refuse(key, *value, "false");
    }
    if (const auto* value = given("quantization_config")) {
      refuse("quantization_config", *value, "weights that are not quantized");
    }
    if (const auto* value = given("pruned_heads"); value && !value->empty()) {
      refuse("pruned_heads", *value, "all heads");
    }
  }

  fs::path path_;
  json json_;
};

}  // namespace

WeightsModel read_hugging_face_model(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    fail_user(
        "there is no folder {}; make it and put config.json, model.safetensors, vocab.json and merges.txt "
        "of a GPT-2 there, e.g. from Hugging Face, https://huggingface.co/openai-community/gpt2/tree/main",
        folder.string());
  }
  if (!fs::is_regular_file(folder / kConfigName, ignored)) {
    fail_user("{} has no {}; a model in Hugging Face's format is a folder with {} and model.safetensors",
              folder.string(), kConfigName, kConfigName);
  }
  return ConfigFile(folder / kConfigName).model();
}

std::vector<WeightsTensor> hugging_face_tensors(const WeightsModel& model) {
  auto with_biases = model;
  with_biases.bias = true;
  return weights_tensors(with_biases, LinearLayout::in_out);
}

}  // namespace shoal
