#include "data/token_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "data/errors.h"

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

MappedFile map_tokens(const std::filesystem::path& path) {
  std::error_code unknown;
  if (std::filesystem::status(path, unknown).type() == std::filesystem::file_type::not_found) {
    fail_user("{}: no such token file; make it with `shoal prepare`", path.string());
  }
  MappedFile file(path);
  if (file.bytes().empty()) fail_user("{}: the file is empty; prepare the data again", path.string());
  return file;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path, int bytes_per_token, std::int64_t vocab_size)
    : bytes_per_token_(bytes_per_token), vocab_size_(vocab_size) {
  assert(bytes_per_token == 2 || bytes_per_token == 4);
  auto file = map_tokens(path);
  if (file.bytes().size() % static_cast<std::size_t>(bytes_per_token) != 0) {
    fail_user(
        "{}: {} bytes is no multiple of {}, the size of a uint{} token: the file is damaged or of another "
        "type",
        path.string(), with_commas(static_cast<std::int64_t>(file.bytes().size())), bytes_per_token,
        8 * bytes_per_token);
  }
  append(std::move(file), 0);
}

TokenFile::TokenFile(const std::vector<std::filesystem::path>& shards) {
  assert(!shards.empty());
  for (const auto& path : shards) {
    auto file = map_tokens(path);
    auto header = read_llmc_header(file.bytes(), path);
    if (!header_) {
      bytes_per_token_ = header.bytes_per_token;
      vocab_size_ = header.vocab_size;
      header_ = std::move(header);
    } else if (header.tokenizer != header_->tokenizer) {
      fail_user("{} holds {} tokens, {} {}; they cannot be read as one split", this->path().string(),
                header_->tokenizer, path.string(), header.tokenizer);
    }
    append(std::move(file), LlmcHeader::kBytes);
  }
}

void TokenFile::append(MappedFile file, std::size_t header_bytes) {
  const auto ids = file.bytes().subspan(header_bytes);
  const auto tokens = static_cast<std::int64_t>(ids.size()) / bytes_per_token_;
  parts_.push_back({std::move(file), size_, tokens, ids.data()});
  size_ += tokens;
}

void TokenFile::truncate(std::int64_t tokens) {
  assert(tokens >= 1 && tokens <= size_);
  size_ = tokens;
}

template <typename Visit>
void TokenFile::for_each_part(std::int64_t begin, std::int64_t end, Visit visit) const {
  auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                               [](std::int64_t position, const Part& one) { return position < one.begin; });
  for (--part; begin < end; ++part) {
    const auto skipped = begin - part->begin, count = std::min(end - begin, part->size - skipped);
    if (bytes_per_token_ == 2) {
      visit(*part, reinterpret_cast<const std::uint16_t*>(part->ids) + skipped, count);
    } else {
      visit(*part, reinterpret_cast<const std::uint32_t*>(part->ids) + skipped, count);
    }
    begin += count;
  }
}

void TokenFile::copy(std::int64_t offset, std::span<std::int32_t> out) const {
  const auto length = static_cast<std::int64_t>(out.size());
  assert(offset >= 0 && offset + length <= size_);
  auto* to = out.data();
  for_each_part(offset, offset + length, [&](const Part&, const auto* ids, std::int64_t count) {
    to = std::transform(ids, ids + count, to, [](auto id) { return static_cast<std::int32_t>(id); });
  });
}

std::uint32_t TokenFile::max_id() const {
  std::uint32_t result = 0;
  for_each_part(0, size_, [&](const Part&, const auto* ids, std::int64_t count) {
    result = std::max(result, largest(ids, count));
  });
  return result;
}

void TokenFile::verify() const {
  const std::int64_t limit =
      vocab_size_ > 0 ? vocab_size_ : std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1;
  for_each_part(0, size_, [&](const Part& part, const auto* ids, std::int64_t size) {
    for (std::int64_t begin = 0; begin < size; begin += kScanBlock) {
      const auto count = std::min(kScanBlock, size - begin);
      if (largest(ids + begin, count) < limit) continue;
      const auto* bad = std::find_if(ids + begin, ids + begin + count, [&](auto id) { return id >= limit; });
      throw DataError(DataError::Fault::large_id, part.file.path(),
                      fmt::format("token {} at position {} is past the vocabulary of {}", *bad,
                                  with_commas(bad - ids), with_commas(limit)));
    }
  });
}

std::uint64_t TokenFile::checksum() const {
  const std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> hash(XXH64_createState(),
                                                                               XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  for (const auto& part : parts_)
    XXH64_update(hash.get(), part.file.bytes().data(), part.file.bytes().size());
  return XXH64_digest(hash.get());
}

}  // namespace shoal
