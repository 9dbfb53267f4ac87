#include "checkpoint/weights_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/float16.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPositions = "wpe.weight", kTokens = "wte.weight";

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : {"_orig_mod.", "transformer."}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  return name;
}

// "h.7.attn.bias" and "h.7.attn.masked_bias": causal masks that older files hold, not parameters.
bool is_mask(std::string_view name) {
  if (!name.starts_with("h.")) return false;
  name.remove_prefix(2);
  name.remove_prefix(std::min(name.find_first_not_of("0123456789"), name.size()));
  return name == ".attn.bias" || name == ".attn.masked_bias";
}

// Elements [row, row + rows) x [column, column + columns) of a matrix in a file, of which a step along either
// dimension is so many elements.
struct Rectangle {
  std::int64_t row, rows, column, columns;
  std::int64_t row_step, column_step;
};

template <typename T>
void convert(const std::byte* from, std::byte* to) {
  T stored;
  std::memcpy(&stored, from, sizeof stored);
  const float value = to_float(stored);
  std::memcpy(to, &value, sizeof value);
}

// Row by row into `out`, packed. Neither side need be aligned.
template <typename T>
void read_rectangle(const std::byte* data, const Rectangle& part, std::byte* out) {
  const auto source = [&](std::int64_t row, std::int64_t column) {
    return data + ((part.row + row) * part.row_step + (part.column + column) * part.column_step) * sizeof(T);
  };
  const auto target = [&](std::int64_t row, std::int64_t column) {
    return out + (row * part.columns + column) * sizeof(float);
  };
  if (part.column_step == 1) {
    for (std::int64_t row = 0; row < part.rows; ++row) {
      for (std::int64_t column = 0; column < part.columns; ++column)
        convert<T>(source(row, column), target(row, column));
    }
    return;
  }
  // Transposed: a few rows at a time, so that what is read of a cache line is read at once.
  constexpr std::int64_t kRows = 32;
  for (std::int64_t first = 0; first < part.rows; first += kRows) {
    const std::int64_t last = std::min(part.rows, first + kRows);
    for (std::int64_t column = 0; column < part.columns; ++column) {
      for (std::int64_t row = first; row < last; ++row) convert<T>(source(row, column), target(row, column));
    }
  }
}

void read_rectangle(const StoredTensor& stored, const Rectangle& part, std::byte* out) {
  if (part.rows <= 0 || part.columns <= 0) return;
  switch (*stored.dtype) {
    case DType::f32:
      return read_rectangle<float>(stored.data.data(), part, out);
    case DType::bf16:
      return read_rectangle<bfloat16>(stored.data.data(), part, out);
    default:
      return read_rectangle<float16>(stored.data.data(), part, out);
  }
}

}  // namespace

WeightsReader::WeightsReader(TensorFiles files, const WeightsModel& model, LinearLayout layout,
                             const fs::path& path, const std::string& model_from)
    : files_(std::move(files)), model_(model), path_(path), model_from_(model_from) {
  for (const auto& file : files_) add_tensors(*file);
  // A file may claim any number of layers: with more than there are tensors, one is missing.
  auto claimed = model_;
  claimed.n_layer =
      static_cast<int>(std::min<std::size_t>(tensors_.size(), static_cast<std::size_t>(model_.n_layer)));
  for (const auto& tensor : weights_tensors(claimed, layout)) expect(tensor);
  check_rest();
}

void WeightsReader::add_tensors(const TensorFile& file) {
  for (const auto& stored : file.tensors()) {
    const auto name = without_prefix(stored.name);
    if (is_mask(name)) continue;
    const auto [at, is_new] = tensors_.try_emplace(std::string(name), Source{&file, &stored, {}});
    if (is_new) continue;
    fail_user("{}: tensor \"{}\" is there twice, also as \"{}\"{}", file.path().string(), stored.name,
              at->second.stored->name,
              at->second.file == &file ? "" : fmt::format(" in {}", at->second.file->path().string()));
  }
}

void WeightsReader::expect(const WeightsTensor& tensor) {
  const auto found = tensors_.find(tensor.name);
  if (found == tensors_.end()) {
    fail_user("{} has no tensor \"{}\", which its {} (n_layer = {}) promises",
              files_.size() == 1 ? files_.front()->path().string() : path_.string(), tensor.name, model_from_,
              model_.n_layer);
  }
  auto& [file, stored, meaning] = found->second;
  const auto& type = stored->dtype;
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16) {
    fail_user("{}: tensor \"{}\" is of type {}; F32, F16 and BF16 can be read", file->path().string(),
              stored->name, stored->type);
  }
  if (stored->shape != tensor.stored_shape()) {
    fail_user("{}: tensor \"{}\" has the shape {}, but {} makes it {}", file->path().string(), stored->name,
              stored->shape.to_string(), model_from_, tensor.stored_shape().to_string());
  }
  meaning = tensor;
}

// Refuses tensors that no part of the model has claimed.
void WeightsReader::check_rest() const {
  for (const auto& [name, source] : tensors_) {
    if (source.meaning) continue;
    if (name == kHeadName) {
      check_head(source);
      continue;
    }
    fail_user("{}: tensor \"{}\" is no part of a GPT-2 of {} layers{}, as {} says",
              source.file->path().string(), source.stored->name, model_.n_layer,
              model_.bias ? "" : " without biases", model_from_);
  }
}

void WeightsReader::check_head(const Source& head) const {
  const auto &stored = *head.stored, &tokens = *tensors_.find(kTokens)->second.stored;
  if (stored.type == tokens.type && stored.shape == tokens.shape &&
      (stored.data.data() == tokens.data.data() ||
       std::memcmp(stored.data.data(), tokens.data.data(), tokens.data.size()) == 0))
    return;
  fail_user(
      "{}: tensor \"{}\" is not the same as \"{}\", but a GPT-2 as {} describes it has one "
      "matrix for both",
      head.file->path().string(), stored.name, tokens.name, model_from_);
}

void WeightsReader::read(const TensorSlice& slice, std::span<std::byte> out) {
  if (const auto fault = fault_of(slice); !fault.empty()) fail("tensor \"{}\": {}", slice.name, fault);
  if (slice.dtype != DType::f32 || out.size() != slice.bytes()) {
    fail("tensor \"{}\": {} bytes for {} of {}", slice.name, out.size(), slice.bytes(), name_of(slice.dtype));
  }
  const auto name = without_prefix(slice.name);
  const auto found = tensors_.find(name);
  if (found == tensors_.end() || !found->second.meaning) {
    fail_user("the model in {} has no tensor \"{}\"", path_.string(), slice.name);
  }
  const auto& [file, stored, meaning] = found->second;
  auto needed = slice.global_shape;
  if (name == kPositions && needed.rank() == 2 && needed[0] < meaning->shape[0])
    needed[0] = meaning->shape[0];
  if (needed != meaning->shape) {
    fail_user("{}: tensor \"{}\" is {} there, but {} is needed", file->path().string(), stored->name,
              meaning->shape.to_string(), slice.global_shape.to_string());
  }
  // A vector is a matrix of one row. The flat range: a part of a row, whole rows, a part of a row.
  const bool matrix = slice.shape.rank() == 2;
  const std::int64_t width = slice.shape[-1];
  if (slice.count() == 0) return;
  const std::int64_t row_0 = matrix ? slice.offset[0] : 0, column_0 = slice.offset[-1];
  const std::int64_t row_step = meaning->transposed ? 1 : meaning->shape[-1];
  const std::int64_t column_step = meaning->transposed ? meaning->shape[0] : 1;
  for (std::int64_t at = slice.flat_begin; at < slice.flat_end;) {
    const std::int64_t row = at / width, column = at % width, left = slice.flat_end - at;
    Rectangle part{row_0 + row, 1, column_0 + column, std::min(width - column, left), row_step, column_step};
    if (column == 0 && left >= width) part.rows = left / width;
    read_rectangle(*stored, part,
                   out.data() + static_cast<std::size_t>(at - slice.flat_begin) * sizeof(float));
    at += part.rows * part.columns;
  }
}

}  // namespace shoal
