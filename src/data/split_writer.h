// Writes one .bin file, with its checksum on the way.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace shoal {

class SplitWriter {
 public:
  // Ids are written as uint16 or uint32 (2 or 4 bytes). Throws Error when the file cannot be created.
  SplitWriter(std::filesystem::path path, int bytes_per_token);

  // Goes on with a file that another writer left: what follows its first `written` tokens is cut off. Throws
  // UserError when these are not there, or not those that were written.
  SplitWriter(std::filesystem::path path, int bytes_per_token, const SplitMeta& written);

  // Every id must fit. Throws Error when the disk is full.
  void append(std::span<const std::int32_t> ids);
  // Everything so far is on the disk afterwards; more may follow. Returns tokens and checksum; throws Error
  // when the disk is full.
  SplitMeta finish();

  std::int64_t tokens() const { return tokens_; }

 private:
  void write(const void* data, std::size_t bytes);
  [[noreturn]] void fail_write();

  std::filesystem::path path_;
  int bytes_per_token_;
  std::int64_t tokens_ = 0;
  std::vector<std::uint16_t> narrow_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> hash_;
};

}  // namespace shoal
