#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <system_error>

#include "checkpoint/shard_file.h"
#include "checkpoint/store.h"
#include "checkpoint/workers.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

// A folder with a checkpoint's name counts as one, so that an error names the manifest that is missing. A run
// may be called "step-law".
bool is_checkpoint(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / kManifestName, ignored) ||
         directory.filename() == step_directory_name(step_of(directory));
}

std::vector<TensorSlice> slices_of(const TensorRecord& tensor) {
  std::vector<TensorSlice> slices;
  for (const auto& record : tensor.slices) slices.push_back(record.slice);
  return slices;
}

std::string describe_missing(const TensorSlice& target, const CopyPlan& plan) {
  return fmt::format(
      "tensor \"{}\" is incomplete: {} of {} elements are in no shard, the first of them at {}", target.name,
      with_commas(plan.missing), with_commas(target.count()), coordinates(target, plan.first_missing));
}

}  // namespace

fs::path find_checkpoint(const fs::path& where) {
  std::error_code error;
  if (!fs::exists(where, error)) {
    if (error) fail_user("there is no checkpoint at {}: {}", where.string(), error.message());
    fail_user("there is no checkpoint at {}: it does not exist{}", where.string(),
              fs::is_symlink(where, error) ? " (a link whose target is gone)" : "");
  }
  if (is_checkpoint(where)) return fs::canonical(where);
  for (const fs::path& root : {where, where / kCheckpointsName}) {
    if (const auto latest = latest_in(root)) return fs::canonical(*latest);
  }
  fail_user(
      "there is no checkpoint at {}. Looked for {} (a checkpoint), {} or step-* directories (a directory of "
      "checkpoints) and {}/{} (a run); weights of other programs are named by hf:, nanogpt: or llmc:",
      where.string(), kManifestName, kLatestName, kCheckpointsName, kLatestName);
}

CheckpointReader::CheckpointReader(const fs::path& where, Verify verify)
    : directory_(find_checkpoint(where)), verify_(verify), manifest_(read_manifest(directory_)) {
  for (const auto& file : manifest_.files) {
    const fs::path path = directory_ / file.name;
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(path, error);
    if (error) fail_user("the checkpoint's file {} cannot be read: {}", path.string(), error.message());
    if (bytes != file.summary.bytes) {
      fail_user("{} has {} bytes; it was written with {}", path.string(), bytes, file.summary.bytes);
    }
  }
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i) index_[manifest_.tensors[i].name] = i;
  shards_.resize(manifest_.files.size());
}

CheckpointReader::~CheckpointReader() = default;

const TensorRecord* CheckpointReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &manifest_.tensors[found->second];
}

ShardFile& CheckpointReader::shard(std::size_t file) {
  auto& shard = shards_[file];
  if (!shard) {
    shard = std::make_unique<ShardFile>(directory_, manifest_.files[file], verify_ == Verify::checksums);
  }
  return *shard;
}

void CheckpointReader::read(const TensorSlice& slice, std::span<std::byte> out) {
  if (const auto fault = fault_of(slice); !fault.empty()) fail("tensor \"{}\": {}", slice.name, fault);
  if (out.size() != slice.bytes())
    fail("tensor \"{}\": {} bytes for {}", slice.name, out.size(), slice.bytes());

  const auto* tensor = find(slice.name);
  if (!tensor) {
    std::vector<std::string> names;
    for (const auto& known : manifest_.tensors) names.push_back(known.name);
    const std::string near = nearest(slice.name, names);
    fail_user("the checkpoint {} has no tensor \"{}\"{}", directory_.string(), slice.name,
              near.empty() ? "" : fmt::format("; the nearest is \"{}\"", near));
  }
  if (tensor->dtype != slice.dtype || tensor->shape != slice.global_shape) {
    fail_user("the checkpoint {} has tensor \"{}\" as {} {}, but {} {} is needed", directory_.string(),
              slice.name, name_of(tensor->dtype), tensor->shape.to_string(), name_of(slice.dtype),
              slice.global_shape.to_string());
  }
  const auto plan = plan_copy(slice, slices_of(*tensor));
  if (plan.missing > 0)
    fail_user("the checkpoint {}: {}", directory_.string(), describe_missing(slice, plan));

  const std::size_t element = size_of(slice.dtype);
  for (const auto& run : plan.runs) {
    const auto& record = tensor->slices[run.source];
    auto& file = shard(record.file);
    auto from = file.data(record).subspan(static_cast<std::size_t>(run.from) * element,
                                          static_cast<std::size_t>(run.count) * element);
    auto to = out.subspan(static_cast<std::size_t>(run.to) * element);
    // In pieces, so that what is verified is still in the cache when it is copied.
    for (std::size_t size; !from.empty(); from = from.subspan(size), to = to.subspan(size)) {
      size = std::min<std::size_t>(from.size(), kChecksumBlock);
      file.verify(from.first(size));
      std::memcpy(to.data(), from.data(), size);
    }
  }
}

std::vector<std::string> verify_checkpoint(const fs::path& where) {
  const fs::path directory = find_checkpoint(where);
  std::vector<std::string> faults;
  Manifest manifest;
  try {
    manifest = read_manifest(directory);
  } catch (const UserError& error) {
    return {error.what()};
  }

  Progress progress("verifying " + directory.filename().string(), static_cast<double>(manifest.file_bytes()),
                    "B");
  double done = 0;
  std::vector<std::size_t> found(manifest.tensors.size());  // slices that the files hold
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    try {
      ShardFile file(directory, manifest.files[i], true);
      for (auto rest = file.bytes(); !rest.empty();) {
        const auto part = rest.first(std::min<std::size_t>(rest.size(), kChecksumBlock));
        file.verify(part);
        progress.update(done += static_cast<double>(part.size()));
        rest = rest.subspan(part.size());
      }
      for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
        for (const auto& slice : manifest.tensors[t].slices) {
          if (slice.file != i) continue;
          file.data(slice);
          ++found[t];
        }
      }
    } catch (const UserError& error) {
      faults.push_back(error.what());
    }
  }
  progress.finish();
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const auto& tensor = manifest.tensors[t];
    // A manifest may claim a tensor of any size; the files limit those whose slices they hold.
    if (found[t] < tensor.slices.size()) continue;
    const auto whole = whole_slice(tensor.name, tensor.dtype, tensor.shape);
    const auto plan = plan_copy(whole, slices_of(tensor));
    if (plan.missing > 0) faults.push_back(describe_missing(whole, plan));
  }
  try {
    workers_of(manifest, directory);
  } catch (const UserError& error) {
    faults.push_back(error.what());
  }
  return faults;
}

CheckpointContents inspect_checkpoint(const fs::path& where) {
  const fs::path directory = find_checkpoint(where);
  CheckpointContents contents{directory, read_manifest(directory)};
  for (const auto& tensor : contents.manifest.tensors) contents.elements += tensor.shape.count();
  contents.bytes = contents.manifest.file_bytes();
  return contents;
}

}  // namespace shoal
