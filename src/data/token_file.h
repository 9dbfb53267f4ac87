// A file of token ids, raw little-endian uint16 or uint32 as nanoGPT writes them, mapped read-only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace shoal {

class TokenFile {
 public:
  // Maps `path`. `bytes_per_token` is 2 or 4; ids are valid below `vocab_size`, 0 when that is not known.
  // Throws UserError when the file is missing, unreadable, empty or no multiple of bytes_per_token.
  TokenFile(std::filesystem::path path, int bytes_per_token, std::int64_t vocab_size = 0);
  ~TokenFile();
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;

  std::int64_t size() const { return size_; }  // in tokens
  int bytes_per_token() const { return bytes_per_token_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  void set_vocab_size(std::int64_t vocab_size) { vocab_size_ = vocab_size; }
  const std::filesystem::path& path() const { return path_; }

  // Forgets all but the first `tokens` tokens, 1 <= tokens <= size().
  void truncate(std::int64_t tokens);

  // Tokens [offset, offset + out.size()), which must lie within [0, size()).
  void copy(std::int64_t offset, std::span<std::int32_t> out) const;

  // Reads everything. max_id: the largest id as an unsigned number.
  std::uint32_t max_id() const;
  // Throws UserError naming the first id that is not below vocab_size() and where it stands.
  void verify() const;
  // XXH64, seed 0, of the whole file as on disk.
  std::uint64_t checksum() const;

 private:
  std::filesystem::path path_;
  int bytes_per_token_;
  std::int64_t vocab_size_, size_ = 0;
  std::size_t mapped_bytes_ = 0;
  const void* data_ = nullptr;
};

}  // namespace shoal
