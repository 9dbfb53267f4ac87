// The characters by which the files of GPT-2's tokenizer and its kind spell bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

// A byte that is a visible character of Latin-1 is spelled as itself, any other by a character from U+0100
// on. The tokens of single bytes are numbered in the order of these characters.
struct ByteAlphabet {
  ByteAlphabet();

  std::string spell(std::string_view bytes) const;  // in UTF-8

  std::array<std::uint8_t, 256> byte_of_id{};
  std::array<std::int32_t, 256> id_of_byte{};
  std::array<char32_t, 256> character{};  // by byte
};

}  // namespace shoal
