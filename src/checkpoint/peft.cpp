#include "checkpoint/peft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/float16.h"
#include "core/json_depth.h"
#include "core/json_integer.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr std::string_view kPeftPrefix = "base_model.model.", kFactorA = ".lora_A.weight",
                           kFactorB = ".lora_B.weight";
constexpr std::string_view kLayers[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};

// The settings of adapter_config.json that decide what the tensors mean.
AdapterModel read_peft_config(const fs::path& path) {
  constexpr std::uint64_t kMost = 1 << 20;
  AdapterModel model;
  try {
    const auto config = json::parse(read_text(path, kMost));
    if (is_deeper(config)) fail_user("{}: values are nested more than {} deep", path.string(), kDeepestJson);
    const auto refuse = [&](const char* key, const char* need) {
      fail_user("{}: {} = {}, but Shoal's adapters need {}", path.string(), key, config.at(key).dump(), need);
    };
    if (config.at("peft_type") != "LORA") refuse("peft_type", "\"LORA\"");
    for (const char* key : {"use_dora", "use_rslora", "lora_bias"}) {
      if (config.value(key, false)) refuse(key, "false");
    }
    if (config.value("bias", "none") != "none") refuse("bias", "\"none\"");
    for (const char* key : {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform"}) {
      if (config.contains(key) && !config[key].empty()) refuse(key, "nothing");
    }
    model.rank = integer_of<int>(config.at("r")).value_or(0);
    model.alpha = config.at("lora_alpha").get<double>();
    model.dropout = config.value("lora_dropout", 0.0);
  } catch (const json::exception& error) {
    fail_user("{} is damaged, or not of peft's LoRA: {}", path.string(), error.what());
  }
  if (model.rank < 1 || !(model.alpha > 0))
    fail_user("{}: r = {} and lora_alpha = {} are no adapters", path.string(), model.rank, model.alpha);
  return model;
}

// "base_model.model.transformer.h.7.attn.c_attn.lora_A.weight"
struct AdapterName {
  int block = 0;
  std::string_view layer, factor;
};

// Nothing for other names.
std::optional<AdapterName> parse_name(std::string_view name) {
  const auto begin = fmt::format("{}transformer.h.", kPeftPrefix);
  if (!name.starts_with(begin)) return std::nullopt;
  name.remove_prefix(begin.size());
  AdapterName parsed;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), parsed.block);
  name.remove_prefix(static_cast<std::size_t>(rest - name.data()));
  if (error != std::errc() || parsed.block < 0 || !name.starts_with('.')) return std::nullopt;
  name.remove_prefix(1);
  for (const auto factor : {kFactorA, kFactorB}) {
    if (!name.ends_with(factor)) continue;
    parsed.factor = factor;
    parsed.layer = name.substr(0, name.size() - factor.size());
  }
  if (std::ranges::find(kLayers, parsed.layer) == std::end(kLayers)) return std::nullopt;
  return parsed;
}

template <typename T>
float value_at(const std::byte* from) {
  T stored;
  std::memcpy(&stored, from, sizeof stored);
  return to_float(stored);
}

float element(const StoredTensor& tensor, std::int64_t i) {
  const auto* at = tensor.data.data() + static_cast<std::size_t>(i) * size_of(*tensor.dtype);
  return *tensor.dtype == DType::f32    ? value_at<float>(at)
         : *tensor.dtype == DType::bf16 ? value_at<bfloat16>(at)
                                        : value_at<float16>(at);
}

}  // namespace

PeftReader::PeftReader(const fs::path& folder)
    : folder_(folder), model_(read_peft_config(folder / "adapter_config.json")) {
  const auto path = folder / "adapter_model.safetensors";
  if (!fs::exists(path)) {
    fail_user("{} is not there; save the adapters with safetensors, peft's default", path.string());
  }
  file_ = std::make_unique<SafetensorsFile>(path);
  std::set<std::string> layers;
  for (const auto& tensor : file_->tensors()) {
    const auto name = parse_name(tensor.name);
    if (!name) {
      fail_user("{}: tensor \"{}\" is no adapter of a linear layer of GPT-2's blocks", path.string(),
                tensor.name);
    }
    const bool readable = tensor.dtype && (tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 ||
                                           tensor.dtype == DType::f16);
    if (!readable)
      fail_user("{}: tensor \"{}\" has values of {}; F32, F16 and BF16 are read", path.string(), tensor.name,
                tensor.type);
    if (tensor.shape.rank() != 2 || tensor.shape[name->factor == kFactorA ? 0 : 1] != model_.rank)
      fail_user("{}: tensor \"{}\" is {}, which is not of the rank in adapter_config.json, r = {}",
                path.string(), tensor.name, tensor.shape.to_string(), model_.rank);
    layers.emplace(name->layer);
    blocks_.insert(name->block);
  }
  model_.layers.assign(layers.begin(), layers.end());
}

void PeftReader::require_blocks(int blocks) const {
  const auto most = blocks_.empty() ? 0 : *blocks_.rbegin() + 1;
  if (most == blocks && std::ssize(blocks_) == blocks) return;
  fail_user("the adapters in {} are of {} blocks{}, the model has {}", folder_.string(), blocks_.size(),
            std::ssize(blocks_) < most ? fmt::format(" of at least {}", most) : "", blocks);
}

void PeftReader::read(const TensorSlice& slice, std::span<std::byte> out) {
  if (const auto fault = fault_of(slice); !fault.empty()) fail("tensor \"{}\": {}", slice.name, fault);
  if (slice.dtype != DType::f32 || out.size() != slice.bytes())
    fail("tensor \"{}\" is not read so", slice.name);
  const auto& stored = file_->at(std::string(kPeftPrefix) + slice.name);
  if (stored.shape != slice.global_shape) {
    fail_user("{}: tensor \"{}\" is {} there, but {} is needed", file_->path().string(), stored.name,
              stored.shape.to_string(), slice.global_shape.to_string());
  }
  const std::int64_t width = slice.shape[-1], columns = slice.global_shape[-1];
  for (std::int64_t i = slice.flat_begin; i < slice.flat_end; ++i) {
    const float value =
        element(stored, (slice.offset[0] + i / width) * columns + slice.offset[-1] + i % width);
    std::memcpy(out.data() + static_cast<std::size_t>(i - slice.flat_begin) * sizeof value, &value,
                sizeof value);
  }
}

namespace {

std::vector<float> read_matrix(SliceSource& from, const std::string& name, const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  from.read(whole_slice(name, DType::f32, shape), std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

void write_peft(const AdapterModel& model, int blocks, const std::function<Shape(const std::string&)>& shapes,
                SliceSource& from, const fs::path& folder) {
  const nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                         {"task_type", "CAUSAL_LM"},
                                         {"base_model_name_or_path", nullptr},
                                         {"r", model.rank},
                                         {"lora_alpha", model.alpha},
                                         {"lora_dropout", model.dropout},
                                         {"target_modules", model.layers},
                                         {"fan_in_fan_out", true},
                                         {"bias", "none"},
                                         {"inference_mode", true},
                                         {"init_lora_weights", true},
                                         {"modules_to_save", nullptr}};
  write_text(folder / "adapter_config.json", config.dump(2) + "\n");
  std::vector<TensorEntry> entries;
  for (int block = 0; block < blocks; ++block) {
    for (const auto& layer : model.layers) {
      const auto shape = shapes(layer);
      const auto name = fmt::format("{}transformer.h.{}.{}", kPeftPrefix, block, layer);
      entries.push_back({name + std::string(kFactorA), DType::f32, {model.rank, shape[1]}});
      entries.push_back({name + std::string(kFactorB), DType::f32, {shape[0], model.rank}});
    }
  }
  SafetensorsWriter writer(folder / "adapter_model.safetensors", entries, {{"format", "pt"}});
  for (const auto& entry : entries) {
    const auto values = read_matrix(from, entry.name.substr(kPeftPrefix.size()), entry.shape);
    writer.write(std::as_bytes(std::span(values)));
  }
  writer.finish();
}

void MergedSource::read(const TensorSlice& slice, std::span<std::byte> out) {
  base_.read(slice, out);
  constexpr std::string_view kWeight = ".weight";
  std::string_view layer = slice.name;
  if (!layer.ends_with(kWeight)) return;
  layer.remove_suffix(kWeight.size());
  const bool adapted = std::ranges::any_of(
      model_.layers, [&](const std::string& name) { return layer.ends_with("." + name); });
  if (!adapted) return;
  const std::int64_t rows = slice.global_shape[0], columns = slice.global_shape[1], rank = model_.rank;
  if (known_ != layer) {
    known_ = layer;
    a_ = read_matrix(adapters_, known_ + std::string(kFactorA), {rank, columns});
    b_ = read_matrix(adapters_, known_ + std::string(kFactorB), {rows, rank});
  }
  const auto scale = static_cast<float>(factor_ * model_.alpha / model_.rank);
  const std::int64_t width = slice.shape[-1];
  std::vector<float> sums(static_cast<std::size_t>(width));
  for (std::int64_t at = slice.flat_begin; at < slice.flat_end;) {
    const std::int64_t row = slice.offset[0] + at / width, first = at % width,
                       count = std::min(width - first, slice.flat_end - at);
    std::fill_n(sums.begin(), count, 0.0f);
    for (std::int64_t k = 0; k < rank; ++k) {
      const float factor = scale * b_[static_cast<std::size_t>(row * rank + k)];
      const float* a = a_.data() + k * columns + slice.offset[1] + first;
      for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += factor * a[i];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      auto* place = out.data() + static_cast<std::size_t>(at + i - slice.flat_begin) * sizeof(float);
      const float value = value_at<float>(place) + sums[static_cast<std::size_t>(i)];
      std::memcpy(place, &value, sizeof value);
    }
    at += count;
  }
}

}  // namespace shoal
