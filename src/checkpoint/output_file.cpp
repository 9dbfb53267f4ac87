#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace shoal {

std::uint64_t checksum(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }
std::uint64_t checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

OutputFile::OutputFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)),
      file_(open_file(path_, O_WRONLY | O_CREAT | (existing == Existing::emptied ? O_TRUNC : 0), "create")) {}

void OutputFile::write(std::span<const std::byte> data) {
  summary_.bytes += data.size();
  while (!data.empty()) {
    // Whole blocks are written from the caller's memory.
    if (block_.empty() && data.size() >= kChecksumBlock) {
      const auto whole = data.first(kChecksumBlock);
      summary_.checksums.push_back(checksum(whole));
      write_all(file_, whole, path_);
      data = data.subspan(kChecksumBlock);
      continue;
    }
    const auto part = data.first(std::min<std::size_t>(data.size(), kChecksumBlock - block_.size()));
    if (block_.empty()) block_.reserve(kChecksumBlock);
    block_.insert(block_.end(), part.begin(), part.end());
    data = data.subspan(part.size());
    if (block_.size() == kChecksumBlock) end_block();
  }
}

void OutputFile::end_block() {
  summary_.checksums.push_back(checksum(block_));
  write_all(file_, block_, path_);
  block_.clear();
}

FileSummary OutputFile::finish() {
  if (!block_.empty()) end_block();
  if (::ftruncate(file_.get(), static_cast<off_t>(summary_.bytes)) != 0) {
    fail_user("cannot write {}: {}", path_.string(), std::generic_category().message(errno));
  }
  sync_file(file_, path_);
  file_ = FileDescriptor();
  return std::move(summary_);
}

}  // namespace shoal
