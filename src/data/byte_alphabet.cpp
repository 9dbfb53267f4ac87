#include "data/byte_alphabet.h"

#include "core/utf8.h"

namespace shoal {

ByteAlphabet::ByteAlphabet() {
  std::int32_t id = 0;
  const auto add = [&](unsigned byte, char32_t spelled) {
    byte_of_id[static_cast<std::size_t>(id)] = static_cast<std::uint8_t>(byte);
    id_of_byte[byte] = id++;
    character[byte] = spelled;
  };
  const auto visible = [](unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
  };
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (visible(byte)) add(byte, byte);
  }
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!visible(byte)) add(byte, next++);
  }
}

std::string ByteAlphabet::spell(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) append_utf8(text, character[static_cast<std::uint8_t>(byte)]);
  return text;
}

}  // namespace shoal
