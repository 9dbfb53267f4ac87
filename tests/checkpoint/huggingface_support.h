// A tiny GPT-2 in Hugging Face's format, any part of which a test can damage.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/huggingface.h"
#include "checkpoint/safetensors.h"
#include "core/float16.h"

namespace shoal::test {

inline constexpr WeightsModel kTinyModel{
    .n_layer = 2, .n_head = 2, .n_embd = 6, .n_positions = 5, .vocab_size = 11};

struct RawTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> data;
};

// The bytes of random finite numbers of a type.
inline std::vector<std::byte> random_numbers(std::int64_t count, DType dtype, std::uint64_t seed) {
  std::vector<std::byte> data(static_cast<std::size_t>(count) * size_of(dtype));
  Dice dice(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(dice.between(-1'000'000, 1'000'000)) / 3e6f;
    const auto put = [&](auto number) {
      std::memcpy(&data[static_cast<std::size_t>(i) * sizeof number], &number, sizeof number);
    };
    if (dtype == DType::f16) {
      put(to_float16(value));
    } else if (dtype == DType::bf16) {
      put(to_bfloat16(value));
    } else {
      put(value);
    }
  }
  return data;
}

// The contents of a folder; a test may change them before they are written.
struct HuggingFaceFolder {
  std::map<std::string, std::string> config = {  // values as JSON
      {"model_type", "\"gpt2\""},
      {"n_layer", "2"},
      {"n_head", "2"},
      {"n_embd", "6"},
      {"n_positions", "5"},
      {"vocab_size", "11"},
      {"activation_function", "\"gelu_new\""},
      {"layer_norm_epsilon", "1e-05"}};
  std::vector<RawTensor> tensors;

  explicit HuggingFaceFolder(const WeightsModel& model = kTinyModel, DType dtype = DType::f32,
                             const std::string& prefix = "transformer.") {
    for (const auto& tensor : hugging_face_tensors(model)) {
      const auto shape = tensor.stored_shape();
      tensors.push_back(
          {prefix + tensor.name, dtype, shape, random_numbers(shape.count(), dtype, tensors.size())});
    }
    config["n_layer"] = std::to_string(model.n_layer);
    config["n_head"] = std::to_string(model.n_head);
    config["n_embd"] = std::to_string(model.n_embd);
    config["n_positions"] = std::to_string(model.n_positions);
    config["vocab_size"] = std::to_string(model.vocab_size);
    if (!model.gelu_tanh) config["activation_function"] = "\"gelu\"";
  }

  RawTensor& at(std::string_view name_end) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [&](const auto& tensor) { return tensor.name.ends_with(name_end); });
  }
  void add(const std::string& name, const Shape& shape, DType dtype = DType::f32) {
    tensors.push_back({name, dtype, shape, random_numbers(shape.count(), dtype, 99)});
  }
  void remove(std::string_view name_end) {
    tensors.erase(tensors.begin() + (&at(name_end) - tensors.data()));
  }

  std::string config_text() const {
    std::string text = "{";
    for (const auto& [key, value] : config)
      text += fmt::format("{}\"{}\": {}", text.size() > 1 ? ", " : "", key, value);
    return text + "}";
  }
  void write(const fs::path& folder) const {
    fs::create_directories(folder);
    spill(folder / "config.json", config_text());
    write_tensors(folder / "model.safetensors", 0, tensors.size());
  }
  void write_tensors(const fs::path& file, std::size_t first, std::size_t last) const {
    std::vector<TensorEntry> entries;
    for (auto i = first; i < last; ++i)
      entries.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape});
    SafetensorsWriter writer(file, entries, {{"format", "pt"}});
    for (auto i = first; i < last; ++i) writer.write(tensors[i].data);
    writer.finish();
  }
};

}  // namespace shoal::test
