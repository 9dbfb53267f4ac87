// UTF-8, strictly: no overlong forms, no surrogates, nothing past U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace shoal {

struct CodePoint {
  char32_t value = 0;
  int length = 0;  // in bytes; 0 where no valid sequence starts
};

// The code point that starts at byte `at`, which must lie within `text`.
inline CodePoint decode_utf8(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[at + i]); };
  const std::size_t left = text.size() - at;
  const auto follows = [&](std::size_t i) { return i < left && (byte(i) & 0xC0) == 0x80; };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4 || !follows(1)) return {};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3Fu), 2};
  if (!follows(2)) return {};
  if (lead < 0xF0) {
    const char32_t value = (lead & 0x0F) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    return value < 0x800 || (value >= 0xD800 && value < 0xE000) ? CodePoint{} : CodePoint{value, 3};
  }
  if (!follows(3)) return {};
  const char32_t value =
      (lead & 0x07) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
  return value < 0x10000 || value > 0x10FFFF ? CodePoint{} : CodePoint{value, 4};
}

inline bool is_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  for (std::size_t at = 0; at < text.size();) {
    if (text.size() - at >= 16) {  // ASCII, two words at a time
      std::uint64_t words[2];
      std::memcpy(words, text.data() + at, 16);
      if (((words[0] | words[1]) & kHighBits) == 0) {
        at += 16;
        continue;
      }
    }
    const int length = decode_utf8(text, at).length;
    if (length == 0) return false;
    at += static_cast<std::size_t>(length);
  }
  return true;
}

// Appends a code point, which must not be a surrogate.
inline void append_utf8(std::string& text, char32_t value) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xC0 | value >> 6);
  } else {
    if (value < 0x10000) {
      put(0xE0 | value >> 12);
    } else {
      put(0xF0 | value >> 18);
      put(0x80 | (value >> 12 & 0x3F));
    }
    put(0x80 | (value >> 6 & 0x3F));
  }
  put(0x80 | (value & 0x3F));
}

}  // namespace shoal
