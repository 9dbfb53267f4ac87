// CRC-32C (Castagnoli), the checksum of TFRecord files.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shoal {

constexpr std::uint32_t crc32c(std::string_view bytes) {
  constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xffu];
  return ~crc;
}

// TFRecord rotates checksums and adds an offset, so that a checksum over data with checksums stays useful.
constexpr std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace shoal
