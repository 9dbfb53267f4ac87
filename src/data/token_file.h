// The token ids of a split: a file of raw little-endian uint16 or uint32, as written by nanoGPT, or a
// sequence of llm.c's files, each with a header. Mapped read-only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/file.h"
#include "data/llmc_header.h"

namespace shoal {

class TokenFile {
 public:
  // Maps `path`. `bytes_per_token` is 2 or 4. Ids must be below `vocab_size`; 0 means unknown. Throws
  // UserError when the file is missing, unreadable or empty, or its size is no multiple of bytes_per_token.
  TokenFile(const std::filesystem::path& path, int bytes_per_token, std::int64_t vocab_size = 0);
  // Maps llm.c's files, at least one, as one sequence of tokens in the order given. Throws UserError when one
  // is missing, unreadable, damaged (data/llmc_header.h) or of another tokenizer than the first.
  explicit TokenFile(const std::vector<std::filesystem::path>& shards);

  std::int64_t size() const { return size_; }  // in tokens
  int bytes_per_token() const { return bytes_per_token_; }
  std::int64_t vocab_size() const { return vocab_size_; }
  void set_vocab_size(std::int64_t vocab_size) { vocab_size_ = vocab_size; }
  // The first file, if there are several.
  const std::filesystem::path& path() const { return parts_.front().file.path(); }
  std::size_t files() const { return parts_.size(); }
  const std::optional<LlmcHeader>& header() const { return header_; }  // the first file's

  // Keeps only the first `tokens` tokens, 1 <= tokens <= size().
  void truncate(std::int64_t tokens);

  // Tokens [offset, offset + out.size()), which must lie within [0, size()).
  void copy(std::int64_t offset, std::span<std::int32_t> out) const;

  // These functions read all tokens. max_id: the largest id as an unsigned number.
  std::uint32_t max_id() const;
  // Throws UserError naming the first id that is not below vocab_size(), and its position.
  void verify() const;
  // XXH64 with seed 0 of all bytes of the files.
  std::uint64_t checksum() const;

 private:
  struct Part {
    MappedFile file;
    std::int64_t begin;  // position of its first token in the split
    std::int64_t size;
    const std::byte* ids;
  };

  void append(MappedFile file, std::size_t header_bytes);
  // Calls visit(part, ids as uint16_t* or uint32_t*, their number) for each part's share of [begin, end).
  template <typename Visit>
  void for_each_part(std::int64_t begin, std::int64_t end, Visit visit) const;

  std::vector<Part> parts_;
  std::optional<LlmcHeader> header_;
  int bytes_per_token_ = 2;
  std::int64_t vocab_size_ = 0, size_ = 0;
};

}  // namespace shoal
