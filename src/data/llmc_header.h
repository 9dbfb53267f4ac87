// The header of llm.c's token files: 256 int32, of which the first three are the magic number, which names
// the tokenizer, the version and the number of tokens. The ids follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace shoal {

struct LlmcHeader {
  static constexpr std::size_t kBytes = 1024;

  int bytes_per_token = 2;
  std::int64_t tokens = 0;
  std::int64_t vocab_size = 0;  // of the tokenizer
  std::string tokenizer;        // its name in words
};

// Whether a file begins with a magic number of llm.c's. Throws UserError when it cannot be read.
bool has_llmc_header(const std::filesystem::path& file);

// The header at the start of `bytes`, a whole file. Throws UserError, naming `file`, when there is none, when
// it is of another kind or version, or promises another number of tokens than the file holds.
LlmcHeader read_llmc_header(std::span<const std::byte> bytes, const std::filesystem::path& file);

}  // namespace shoal
