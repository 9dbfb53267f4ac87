// manifest.json: what a checkpoint holds and where. Written last, so a directory with a manifest is whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/output_file.h"
#include "checkpoint/slice.h"

namespace shoal {

inline constexpr int kCheckpointFormat = 1;
inline constexpr const char* kManifestName = "manifest.json";

// The trainer's facts about a checkpoint; opaque here. Texts are UTF-8; JSON has no NaN or infinity.
struct CheckpointInfo {
  std::int64_t step = 0;
  std::string shoal_version;
  std::string config;                               // TOML
  nlohmann::json model = nlohmann::json::object();  // what must agree for the tensors to fit
  nlohmann::json state = nlohmann::json::object();  // tokens seen, best loss, ...
};

struct FileRecord {
  std::string name;  // within the checkpoint's directory
  FileSummary summary;
};

struct SliceRecord {
  TensorSlice slice;
  std::size_t file = 0;  // index into Manifest::files
  std::string
      stored_as;  // the name in that file: the tensor's own, unless the file holds several of its slices
};

struct TensorRecord {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;  // of the global tensor
  std::vector<SliceRecord> slices;

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(shape.count()) * size_of(dtype); }
};

struct Manifest {
  CheckpointInfo info;
  std::vector<FileRecord> files;
  std::vector<TensorRecord> tensors;

  std::uint64_t file_bytes() const;
};

std::string to_json_text(const Manifest& manifest);
// Throws UserError naming `path` and the fault: not JSON, changed since it was written, an unknown format, a
// field that is missing or impossible.
Manifest manifest_from_json_text(std::string_view text, const std::filesystem::path& path);
Manifest read_manifest(const std::filesystem::path& directory);

// Adds one rank's files and tensors. Throws Error when ranks disagree about a tensor.
void merge(Manifest& into, Manifest part);

}  // namespace shoal
