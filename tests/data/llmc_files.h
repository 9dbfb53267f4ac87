// llm.c's token files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::test {

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The header that llm.c's dev/data/data_common.py writes; `count` is the number of tokens.
inline std::string llmc_header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header);
}

// A file of GPT-2's tokens (uint16) or Llama 3's (uint32).
template <typename T>
std::string llmc_file(const std::vector<T>& ids) {
  const auto count = static_cast<std::int32_t>(ids.size());
  return (sizeof(T) == 2 ? llmc_header(20240520, 1, count) : llmc_header(20240801, 7, count)) + bytes_of(ids);
}

}  // namespace shoal::test
