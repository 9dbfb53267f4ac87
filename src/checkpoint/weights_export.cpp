#include "checkpoint/weights_export.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/float16.h"

namespace shoal {
namespace {

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

}  // namespace

std::uint64_t stored_bytes(const std::vector<WeightsTensor>& tensors, DType dtype) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors)
    bytes += static_cast<std::uint64_t>(tensor.shape.count()) * size_of(dtype);
  return bytes;
}

void WeightsStream::write(const WeightsTensor& tensor) {
  name_ = tensor.full_name();
  if (!what_.model.bias && tensor.name.ends_with(".bias")) return write_zeros(tensor.shape.count());
  tensor.transposed ? write_transposed(tensor.shape) : write_straight(tensor.shape);
}

void WeightsStream::write_zeros(std::int64_t count) {
  for (; count > 0; count -= kPieceElements) {
    values_.assign(static_cast<std::size_t>(std::min(count, kPieceElements)), 0.0f);
    put();
  }
}

void WeightsStream::read(const TensorSlice& slice, std::vector<float>& values) {
  values.resize(static_cast<std::size_t>(slice.count()));
  from_.read(slice, std::as_writable_bytes(std::span(values)));
}

void WeightsStream::write_straight(const Shape& shape) {
  auto slice = whole_slice(name_, DType::f32, shape);
  for (std::int64_t first = 0; first < shape.count(); first += kPieceElements) {
    slice.flat_begin = first;
    slice.flat_end = std::min(shape.count(), first + kPieceElements);
    read(slice, values_);
    put();
  }
}

// Rows of what is written are columns of what is read, shape [out, in].
void WeightsStream::write_transposed(const Shape& shape) {
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

void WeightsStream::put() {
  const auto bytes = as_stored();
  sink_(bytes);
  written_ += bytes.size();
  if (progress_) progress_(written_);
}

std::span<const std::byte> WeightsStream::as_stored() {
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

void export_safetensors(const WeightsExport& what, std::vector<WeightsTensor> tensors, bool head_copy,
                        SliceSource& from, const std::filesystem::path& path,
                        const std::map<std::string, std::string>& metadata, const ExportProgress& progress) {
  std::vector<TensorEntry> entries;
  for (const auto& tensor : tensors) {
    entries.push_back({tensor.full_name(), what.dtype, tensor.stored_shape()});
  }
  if (head_copy) {
    tensors.push_back(tensors.front());
    entries.push_back({std::string(kHeadName), what.dtype, tensors.front().shape});
  }
  SafetensorsWriter file(path, entries, metadata);
  WeightsStream stream(
      what, from, [&](std::span<const std::byte> bytes) { file.write_part(bytes); }, progress);
  for (const auto& tensor : tensors) stream.write(tensor);
  file.finish();
}

}  // namespace shoal
