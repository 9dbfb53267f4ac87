#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/huggingface.h"
#include "core/file.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::optional<std::int64_t>& token) {
  return token ? ordered_json(*token) : ordered_json();
}

std::string config_text(const WeightsExport& what) {
  const auto& model = what.model;
  const ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                               {"model_type", "gpt2"},
                               {"activation_function", model.gelu_tanh ? "gelu_new" : "gelu"},
                               {"n_layer", model.n_layer},
                               {"n_head", model.n_head},
                               {"n_embd", model.n_embd},
                               {"n_inner", nullptr},
                               {"n_positions", model.n_positions},
                               {"vocab_size", model.vocab_size},
                               {"layer_norm_epsilon", 1e-5},
                               {"embd_pdrop", what.dropout},
                               {"attn_pdrop", what.dropout},
                               {"resid_pdrop", what.dropout},
                               {"initializer_range", 0.02},
                               {"scale_attn_weights", true},
                               {"tie_word_embeddings", model.tied},
                               {"bos_token_id", or_null(what.end_of_text)},
                               {"eos_token_id", or_null(what.end_of_text)},
                               {"torch_dtype", std::string(name_of(what.dtype))}};
  return config.dump(2) + "\n";
}

std::string generation_text(const WeightsExport& what) {
  const ordered_json config = {{"_from_model_config", true},
                               {"bos_token_id", or_null(what.end_of_text)},
                               {"eos_token_id", or_null(what.end_of_text)}};
  return config.dump(2) + "\n";
}

}  // namespace

void write_hugging_face(const WeightsExport& what, SliceSource& from, const fs::path& folder,
                        const ExportProgress& progress) {
  write_text(folder / "config.json", config_text(what));
  write_text(folder / "generation_config.json", generation_text(what));
  export_safetensors(what, hugging_face_tensors(what.model), false, from, folder / "model.safetensors",
                     {{"format", "pt"}}, progress);
}

std::uint64_t hugging_face_bytes(const WeightsExport& what) {
  return stored_bytes(hugging_face_tensors(what.model), what.dtype);
}

}  // namespace shoal
