#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/huggingface.h"
#include "core/error.h"
#include "core/float16.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

using nlohmann::ordered_json;

// Float32 values as those of another type.
template <typename T, typename Round>
void convert(std::span<const float> values, std::vector<std::byte>& out, const std::string& tensor, DType to,
             Round round) {
  out.resize(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T rounded = round(values[i]);
    if (std::isinf(to_float(rounded)) && std::isfinite(values[i])) {
      fail_user("tensor \"{}\" holds {}, which is too large for {}; export as float32", tensor, values[i],
                name_of(to));
    }
    std::memcpy(&out[i * sizeof(T)], &rounded, sizeof(T));
  }
}

// Streams the tensors of a model into a file.
class Writer {
 public:
  Writer(const HuggingFaceExport& what, SliceSource& from, const fs::path& path,
         const std::function<void(std::uint64_t)>& progress)
      : what_(what), from_(from), file_(path, entries(what), {{"format", "pt"}}), progress_(progress) {}

  void write(const HuggingFaceTensor& tensor) {
    name_ = "transformer." + tensor.name;
    if (!what_.bias && tensor.name.ends_with(".bias")) {
      values_.assign(static_cast<std::size_t>(tensor.shape.count()), 0.0f);
      return put();
    }
    tensor.transposed ? write_transposed(tensor.shape) : write_straight(tensor.shape);
  }
  void finish() { file_.finish(); }

 private:
  static std::vector<TensorEntry> entries(const HuggingFaceExport& what) {
    std::vector<TensorEntry> entries;
    for (const auto& tensor : hugging_face_tensors(what.model)) {
      entries.push_back({"transformer." + tensor.name, what.dtype, tensor.stored_shape()});
    }
    return entries;
  }

  void read(const TensorSlice& slice, std::vector<float>& values) {
    values.resize(static_cast<std::size_t>(slice.count()));
    from_.read(slice, std::as_writable_bytes(std::span(values)));
  }

  void write_straight(const Shape& shape) {
    auto slice = whole_slice(name_, DType::f32, shape);
    for (std::int64_t first = 0; first < shape.count(); first += kPieceElements) {
      slice.flat_begin = first;
      slice.flat_end = std::min(shape.count(), first + kPieceElements);
      read(slice, values_);
      put();
    }
  }

  // Rows of what is written are columns of what is read, shape [out, in].
  void write_transposed(const Shape& shape) {
    const std::int64_t rows = shape[0], most = std::max<std::int64_t>(1, kPieceElements / rows);
    for (std::int64_t first = 0; first < shape[1]; first += most) {
      const std::int64_t columns = std::min(most, shape[1] - first);
      read(box_slice(name_, DType::f32, shape, 1, first, columns), read_);
      values_.resize(read_.size());
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) {
          values_[static_cast<std::size_t>(column * rows + row)] =
              read_[static_cast<std::size_t>(row * columns + column)];
        }
      }
      put();
    }
  }

  void put() {
    const auto bytes = as_stored();
    file_.write_part(bytes);
    written_ += bytes.size();
    if (progress_) progress_(written_);
  }

  std::span<const std::byte> as_stored() {
    switch (what_.dtype) {
      case DType::bf16:
        convert<bfloat16>(values_, converted_, name_, what_.dtype, to_bfloat16);
        return converted_;
      case DType::f16:
        convert<float16>(values_, converted_, name_, what_.dtype, to_float16);
        return converted_;
      default:
        return std::as_bytes(std::span(values_));
    }
  }

  const HuggingFaceExport& what_;
  SliceSource& from_;
  SafetensorsWriter file_;
  const std::function<void(std::uint64_t)>& progress_;
  std::string name_;  // of the tensor at hand
  std::vector<float> read_, values_;
  std::vector<std::byte> converted_;
  std::uint64_t written_ = 0;
};

ordered_json or_null(const std::optional<std::int64_t>& token) {
  return token ? ordered_json(*token) : ordered_json();
}

std::string config_text(const HuggingFaceExport& what) {
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
                               {"tie_word_embeddings", true},
                               {"bos_token_id", or_null(what.end_of_text)},
                               {"eos_token_id", or_null(what.end_of_text)},
                               {"torch_dtype", std::string(name_of(what.dtype))}};
  return config.dump(2) + "\n";
}

std::string generation_text(const HuggingFaceExport& what) {
  const ordered_json config = {{"_from_model_config", true},
                               {"bos_token_id", or_null(what.end_of_text)},
                               {"eos_token_id", or_null(what.end_of_text)}};
  return config.dump(2) + "\n";
}

}  // namespace

void write_hugging_face(const HuggingFaceExport& what, SliceSource& from, const fs::path& folder,
                        const std::function<void(std::uint64_t)>& progress) {
  write_text(folder / "config.json", config_text(what));
  write_text(folder / "generation_config.json", generation_text(what));
  Writer writer(what, from, folder / "model.safetensors", progress);
  for (const auto& tensor : hugging_face_tensors(what.model)) writer.write(tensor);
  writer.finish();
}

std::uint64_t hugging_face_bytes(const HuggingFaceExport& what) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : hugging_face_tensors(what.model)) {
    bytes += static_cast<std::uint64_t>(tensor.shape.count()) * size_of(what.dtype);
  }
  return bytes;
}

}  // namespace shoal
