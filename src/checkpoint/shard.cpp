#include "checkpoint/shard.h"

#include <algorithm>
#include <map>

#include "checkpoint/shard_file.h"
#include "core/error.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

// Names for one file's slices: the tensor's own, then "name#1", "name#2".
std::vector<SliceRecord> name_slices(std::span<const TensorSlice> slices) {
  std::map<std::string, int> count;
  std::vector<SliceRecord> records;
  for (const auto& slice : slices) {
    if (const auto fault = fault_of(slice); !fault.empty()) fail("tensor \"{}\": {}", slice.name, fault);
    const int nth = count[slice.name]++;
    records.push_back({slice, 0, nth == 0 ? slice.name : fmt::format("{}#{}", slice.name, nth)});
  }
  return records;
}

// Verifies the file of a shard block by block, and passes each block on.
void for_blocks(const fs::path& folder, const Manifest& record,
                const std::function<void(std::span<const std::byte>)>& take) {
  ShardFile file(folder, record.files.at(0), true);
  for (auto rest = file.bytes(); !rest.empty();) {
    const auto block = rest.first(std::min<std::size_t>(rest.size(), kChecksumBlock));
    file.verify(block);
    take(block);
    rest = rest.subspan(block.size());
  }
}

}  // namespace

std::string shard_name(int rank, int world) {
  return fmt::format("shard-{:05d}-of-{:05d}.safetensors", rank, world);
}

std::uint64_t shard_bytes(std::span<const SliceView> slices) {
  // A header entry takes about 100 bytes and its name, a manifest entry as much again.
  std::uint64_t bytes = 64 << 10;
  for (const auto& view : slices) bytes += view.data.size() + view.slice.name.size() * 4 + 512;
  return bytes;
}

Manifest write_shard_file(const fs::path& path, std::span<const SliceView> views, const std::stop_token& stop,
                          OutputFile::Existing existing) {
  std::vector<TensorSlice> slices;
  for (const auto& [slice, data] : views) {
    if (data.size() != slice.bytes()) {
      fail("tensor \"{}\": {} bytes of data for a slice of {}", slice.name, data.size(), slice.bytes());
    }
    slices.push_back(slice);
  }
  const auto write_data = [&](SafetensorsWriter& file) {
    for (const auto& view : views) {
      if (stop.stop_requested()) fail("the run has ended");
      file.write(view.data);
    }
  };
  return write_shard_file(path, slices, write_data, existing);
}

Manifest write_shard_file(const fs::path& path, std::span<const TensorSlice> slices,
                          const std::function<void(SafetensorsWriter&)>& write_data,
                          OutputFile::Existing existing) {
  const auto records = name_slices(slices);
  std::vector<TensorEntry> entries;
  for (const auto& record : records) {
    entries.push_back({record.stored_as, record.slice.dtype, record.slice.stored_shape()});
  }
  SafetensorsWriter file(path, std::move(entries), {}, existing);
  write_data(file);

  Manifest one_by_one, part;
  one_by_one.files.push_back({path.filename().string(), file.finish()});
  for (const auto& record : records) {
    const auto& slice = record.slice;
    one_by_one.tensors.push_back({slice.name, slice.dtype, slice.global_shape, {record}});
  }
  merge(part, std::move(one_by_one));  // brings the slices of a tensor together
  return part;
}

void verify_shard_file(const fs::path& folder, const Manifest& record) {
  for_blocks(folder, record, [](std::span<const std::byte>) {});
}

Manifest copy_shard_file(const fs::path& folder, Manifest record, const fs::path& to) {
  auto& described = record.files.at(0);
  OutputFile file(to);
  for_blocks(folder, record, [&](std::span<const std::byte> block) { file.write(block); });
  if (file.finish() != described.summary) fail("{} changed while it was copied", folder.string());
  described.name = to.filename().string();
  return record;
}

}  // namespace shoal
