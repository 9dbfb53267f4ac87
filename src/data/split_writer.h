// Writes one .bin file and computes its checksum.
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

  // Continues a file of an earlier writer: keeps the tokens of `written` and cuts off the rest. Throws
  // UserError when the file is too short or their checksum differs.
  SplitWriter(std::filesystem::path path, int bytes_per_token, const SplitMeta& written);

  // Every id must fit. Throws Error when the disk is full.
  void append(std::span<const std::int32_t> ids);
  // Syncs the file to the disk, and returns the number of tokens and the checksum so far. More tokens may
  // follow. Throws Error when the disk is full.
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
