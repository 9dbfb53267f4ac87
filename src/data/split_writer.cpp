#include "data/split_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace shoal {

SplitWriter::SplitWriter(std::filesystem::path path, int bytes_per_token)
    : path_(std::move(path)),
      bytes_per_token_(bytes_per_token),
      file_(std::fopen(path_.c_str(), "wb"), std::fclose),
      hash_(XXH64_createState(), XXH64_freeState) {
  if (!file_) fail_write();
  XXH64_reset(hash_.get(), 0);
}

SplitWriter::SplitWriter(std::filesystem::path path, int bytes_per_token, const SplitMeta& written)
    : path_(std::move(path)),
      bytes_per_token_(bytes_per_token),
      tokens_(written.tokens),
      file_(std::fopen(path_.c_str(), "r+b"), std::fclose),
      hash_(XXH64_createState(), XXH64_freeState) {
  XXH64_reset(hash_.get(), 0);
  std::vector<char> block(1 << 20);
  auto left = static_cast<std::size_t>(tokens_) * static_cast<std::size_t>(bytes_per_token_);
  while (file_ && left > 0) {
    const auto count = std::fread(block.data(), 1, std::min(block.size(), left), file_.get());
    if (count == 0) break;
    XXH64_update(hash_.get(), block.data(), count);
    left -= count;
  }
  if (!file_ || left > 0 || XXH64_digest(hash_.get()) != written.xxh64) {
    fail_user("{}: changed since it was written; remove {} to start over", path_.string(),
              path_.parent_path().string());
  }
  // C streams require a seek between reading and writing.
  const auto end = static_cast<off_t>(tokens_) * bytes_per_token_;
  if (ftruncate(fileno(file_.get()), end) != 0 || fseeko(file_.get(), end, SEEK_SET) != 0) fail_write();
}

void SplitWriter::append(std::span<const std::int32_t> ids) {
  tokens_ += static_cast<std::int64_t>(ids.size());
  if (bytes_per_token_ == 4) return write(ids.data(), ids.size_bytes());
  narrow_.assign(ids.begin(), ids.end());
  write(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
}

void SplitWriter::write(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  XXH64_update(hash_.get(), data, bytes);
  if (std::fwrite(data, 1, bytes, file_.get()) != bytes) fail_write();
}

SplitMeta SplitWriter::finish() {
  if (std::fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0) fail_write();
  return {tokens_, XXH64_digest(hash_.get()), {}};
}

void SplitWriter::fail_write() { fail("{}: cannot be written: {}", path_.string(), std::strerror(errno)); }

}  // namespace shoal
