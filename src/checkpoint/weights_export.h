// Writing a model for other programs: its description, and the stream of its parameters in another layout and
// type.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/slice_source.h"
#include "checkpoint/weights_model.h"

namespace shoal {

// Writers throw UserError when the disk is full or a value does not fit the type.
struct WeightsExport {
  WeightsModel model;
  DType dtype = DType::f32;
  double dropout = 0;
  std::optional<std::int64_t> end_of_text = {};  // the token
};

// Is told the bytes of tensors that were written so far.
using ExportProgress = std::function<void(std::uint64_t)>;

// The bytes of tensors as they are stored.
std::uint64_t stored_bytes(const std::vector<WeightsTensor>& tensors, DType dtype);

// Reads tensors in pieces of bounded size, and passes them on as they are stored.
class WeightsStream {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  WeightsStream(const WeightsExport& what, SliceSource& from, Sink sink, const ExportProgress& progress)
      : what_(what), from_(from), sink_(std::move(sink)), progress_(progress) {}

  // A bias that the model does not have is written as zeros.
  void write(const WeightsTensor& tensor);
  void write_zeros(std::int64_t count);

 private:
  void read(const TensorSlice& slice, std::vector<float>& values);
  void write_straight(const Shape& shape);
  void write_transposed(const Shape& shape);
  void put();
  std::span<const std::byte> as_stored();

  const WeightsExport& what_;
  SliceSource& from_;
  Sink sink_;
  const ExportProgress& progress_;
  std::string name_;  // of the tensor at hand
  std::vector<float> read_, values_;
  std::vector<std::byte> converted_;
  std::uint64_t written_ = 0;
};

// Writes one safetensors file of the tensors, under their full names, in their order. With `head_copy`,
// lm_head.weight follows, a copy of the embedding's matrix.
void export_safetensors(const WeightsExport& what, std::vector<WeightsTensor> tensors, bool head_copy,
                        SliceSource& from, const std::filesystem::path& path,
                        const std::map<std::string, std::string>& metadata, const ExportProgress& progress);

}  // namespace shoal
