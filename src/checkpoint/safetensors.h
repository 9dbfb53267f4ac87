// The safetensors format (github.com/huggingface/safetensors): an 8-byte length, a JSON header, raw
// little-endian tensors. What is written here can be read with Python's safetensors package, and the other
// way round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/output_file.h"
#include "checkpoint/tensor_file.h"
#include "core/tensor.h"

namespace shoal {

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Writes tensors one after the other, without holding them. Failures to write throw UserError.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata = {},
                    OutputFile::Existing existing = OutputFile::Existing::emptied);
  // The next entry's data: shape.count() elements.
  void write(std::span<const std::byte> data);
  // The same in pieces, one after the other.
  void write_part(std::span<const std::byte> data);
  // After the last entry: returns when the file is on the disk.
  FileSummary finish();

 private:
  std::vector<TensorEntry> entries_;
  std::size_t next_ = 0;
  std::size_t written_ = 0;  // of its bytes
  OutputFile file_;
};

// A mapped file. A header that is damaged or lies (lengths, shapes, offsets that overlap, leave holes or end
// elsewhere than the file, duplicate names, sizes that overflow, more than Shape::kMaxRank dimensions) throws
// a UserError that names the file, the tensor and the fault.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path) : SafetensorsFile(MappedFile(path)) {}
  explicit SafetensorsFile(MappedFile file);

  const std::filesystem::path& path() const override { return file_.path(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  std::span<const std::byte> header() const { return bytes().first(header_bytes_); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // In the order of their data.
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  const StoredTensor* find(std::string_view name) const;
  const StoredTensor& at(std::string_view name) const;  // throws UserError, with the nearest name

 private:
  void parse_header();

  MappedFile file_;
  std::size_t header_bytes_ = 0;  // with its length
  std::map<std::string, std::string> metadata_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace shoal
