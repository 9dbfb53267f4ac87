#include "checkpoint/shard_file.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {

namespace fs = std::filesystem;

ShardFile::ShardFile(const fs::path& directory, const FileRecord& record, bool verify)
    : record_(record),
      verify_(verify),
      verified_(record.summary.checksums.size()),
      file_(open(directory / record.name)) {
  this->verify(file_.header());
}

MappedFile ShardFile::open(fs::path path) {
  MappedFile file(std::move(path));
  const auto all = file.bytes();
  if (all.size() != record_.summary.bytes) {
    fail_user("{} has {} bytes; it was written with {}", file.path().string(), all.size(),
              record_.summary.bytes);
  }
  // The start of the header, so that damage is reported as such and not as what it makes of the JSON.
  verify_range(file.path(), all, 0, std::min<std::uint64_t>(1, all.size()));
  return file;
}

std::span<const std::byte> ShardFile::data(const SliceRecord& slice) const {
  const auto* tensor = file_.find(slice.stored_as);
  if (!tensor || tensor->dtype != slice.slice.dtype || tensor->shape != slice.slice.stored_shape()) {
    fail_user("{} does not hold tensor \"{}\" as {} {}, which the manifest expects there",
              file_.path().string(), slice.stored_as, name_of(slice.slice.dtype),
              slice.slice.stored_shape().to_string());
  }
  return tensor->data;
}

void ShardFile::verify(std::span<const std::byte> part) {
  const auto begin = static_cast<std::uint64_t>(part.data() - bytes().data());
  verify_range(file_.path(), bytes(), begin, begin + part.size());
}

void ShardFile::verify_range(const fs::path& path, std::span<const std::byte> all, std::uint64_t begin,
                             std::uint64_t end) {
  if (!verify_ || begin >= end) return;
  for (std::uint64_t block = begin / kChecksumBlock; block * kChecksumBlock < end; ++block) {
    if (verified_[block]) continue;
    const std::uint64_t start = block * kChecksumBlock;
    const auto data = all.subspan(start, std::min<std::uint64_t>(kChecksumBlock, all.size() - start));
    if (checksum(data) != record_.summary.checksums[block]) {
      fail_user("{} is damaged: bytes {} to {} differ from what was written (checksum)", path.string(), start,
                start + data.size());
    }
    verified_[block] = true;
  }
}

}  // namespace shoal
