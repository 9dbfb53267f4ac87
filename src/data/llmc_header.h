// The header of llm.c's token files: 256 int32. The first three are a magic number for the tokenizer, the
// version and the number of tokens. The ids follow the header.
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
  std::string tokenizer;        // "GPT-2", "Llama 3"
};

// Whether a file begins with one of llm.c's magic numbers. Throws UserError when it cannot be read.
bool has_llmc_header(const std::filesystem::path& file);

// Reads the header at the start of `bytes`, a whole file. Throws UserError, naming `file`, when there is
// none, when it has another kind or version, or when its number of tokens does not fit the size of the file.
LlmcHeader read_llmc_header(std::span<const std::byte> bytes, const std::filesystem::path& file);

}  // namespace shoal
