#include "data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::int64_t kScanBlock = 1 << 16;  // tokens

template <typename T>
std::uint32_t largest(const T* ids, std::int64_t count) {
  T result = 0;
  for (std::int64_t i = 0; i < count; ++i) result = std::max(result, ids[i]);
  return result;
}

// Calls visit(ids as uint16_t* or uint32_t*).
template <typename Visit>
auto with_ids(const void* data, int bytes_per_token, Visit visit) {
  if (bytes_per_token == 2) return visit(static_cast<const std::uint16_t*>(data));
  return visit(static_cast<const std::uint32_t*>(data));
}

}  // namespace

TokenFile::TokenFile(std::filesystem::path path, int bytes_per_token, std::int64_t vocab_size)
    : path_(std::move(path)), bytes_per_token_(bytes_per_token), vocab_size_(vocab_size) {
  assert(bytes_per_token == 2 || bytes_per_token == 4);
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) fail_user("{}: no such token file; make it with `shoal prepare`", path_.string());
    fail_user("{}: cannot be opened: {}", path_.string(), std::strerror(errno));
  }
  struct stat status {};
  const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  mapped_bytes_ = regular ? static_cast<std::size_t>(status.st_size) : 0;
  void* data = nullptr;
  if (mapped_bytes_ > 0 && mapped_bytes_ % static_cast<std::size_t>(bytes_per_token) == 0) {
    data = mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, fd, 0);
  }
  const int map_error = errno;
  close(fd);

  if (!regular) fail_user("{}: not a regular file", path_.string());
  if (mapped_bytes_ == 0) fail_user("{}: the file is empty; prepare the data again", path_.string());
  if (data == nullptr) {
    fail_user(
        "{}: {} bytes is no multiple of {}, the size of a uint{} token: the file is damaged or of another "
        "type",
        path_.string(), with_commas(static_cast<std::int64_t>(mapped_bytes_)), bytes_per_token,
        8 * bytes_per_token);
  }
  if (data == MAP_FAILED) fail("{}: cannot be mapped: {}", path_.string(), std::strerror(map_error));
  data_ = data;
  size_ = static_cast<std::int64_t>(mapped_bytes_) / bytes_per_token;
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_per_token_(other.bytes_per_token_),
      vocab_size_(other.vocab_size_),
      size_(std::exchange(other.size_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)) {}

TokenFile::~TokenFile() {
  if (data_ != nullptr) munmap(const_cast<void*>(data_), mapped_bytes_);
}

void TokenFile::truncate(std::int64_t tokens) {
  assert(tokens >= 1 && tokens <= size_);
  size_ = tokens;
}

void TokenFile::copy(std::int64_t offset, std::span<std::int32_t> out) const {
  assert(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= size_);
  with_ids(data_, bytes_per_token_, [&](const auto* ids) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::int32_t>(ids[offset + static_cast<std::int64_t>(i)]);
    }
  });
}

std::uint32_t TokenFile::max_id() const {
  return with_ids(data_, bytes_per_token_, [&](const auto* ids) { return largest(ids, size_); });
}

void TokenFile::verify() const {
  const std::int64_t limit =
      vocab_size_ > 0 ? vocab_size_ : std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  with_ids(data_, bytes_per_token_, [&](const auto* ids) {
    for (std::int64_t begin = 0; begin < size_; begin += kScanBlock) {
      const auto count = std::min(kScanBlock, size_ - begin);
      if (largest(ids + begin, count) < limit) continue;
      const auto* bad = std::find_if(ids + begin, ids + begin + count, [&](auto id) { return id >= limit; });
      fail_user(
          "{}: token {} at position {} is past the vocabulary of {}; the file belongs to another tokenizer, "
          "or "
          "model.vocab_size is too small",
          path_.string(), *bad, with_commas(bad - ids), with_commas(limit));
    }
  });
}

std::uint64_t TokenFile::checksum() const { return XXH64(data_, mapped_bytes_, 0); }

}  // namespace shoal
