// One rank's part of a checkpoint: a safetensors file of slices, and its record, a manifest of that file
// alone.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <stop_token>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/slice.h"

namespace shoal {

// A slice and its data: slice.count() elements.
struct SliceView {
  TensorSlice slice;
  std::span<const std::byte> data;
};

std::string shard_name(int rank, int world);  // "shard-00003-of-00008.safetensors"

// Bytes that a shard takes, with its record, rounded up.
std::uint64_t shard_bytes(std::span<const SliceView> slices);

// Both write the file of a shard and return its record. They throw UserError when it cannot be written; the
// first throws Error when it is told to stop.
Manifest write_shard_file(const std::filesystem::path& path, std::span<const SliceView> views,
                          const std::stop_token& stop,
                          OutputFile::Existing existing = OutputFile::Existing::emptied);
// `write_data` writes the data of the slices in their order.
Manifest write_shard_file(const std::filesystem::path& path, std::span<const TensorSlice> slices,
                          const std::function<void(SafetensorsWriter&)>& write_data,
                          OutputFile::Existing existing = OutputFile::Existing::emptied);

// Throws UserError when the file of a shard does not match its record: it is damaged.
void verify_shard_file(const std::filesystem::path& folder, const Manifest& record);

// Copies the file of a shard and returns the record of the copy. Throws UserError when the file does not
// match its record, or when the copy cannot be written.
Manifest copy_shard_file(const std::filesystem::path& folder, Manifest record,
                         const std::filesystem::path& to);

}  // namespace shoal
