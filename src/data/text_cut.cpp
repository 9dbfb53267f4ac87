#include "data/text_cut.h"

#include "core/utf8.h"

namespace shoal {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Whether a valid character that is certainly not white space starts at `at`. In doubt it is white space.
bool starts_word_character(std::string_view text, std::size_t at) {
  const auto point = decode_utf8(text, at);
  const char32_t c = point.value;
  return point.length > 0 && c > 0x20 && c != 0x7F && c != 0x85 && c != 0xA0 && c != 0x1680 && c != 0x180E &&
         !(c >= 0x2000 && c <= 0x206F) && c != 0x3000 && c != 0xFEFF;
}

// The same for the character that ends just before `end`.
bool ends_word_character(std::string_view text, std::size_t end) {
  std::size_t at = end;
  do {
    if (at == 0) return false;
    --at;
  } while (is_continuation(text[at]) && end - at < 4);
  return starts_word_character(text, at) && decode_utf8(text, at).length == static_cast<int>(end - at);
}

}  // namespace

std::size_t last_safe_cut(std::string_view text) {
  for (std::size_t i = text.size(); i-- > 1;) {
    if (i + 1 >= text.size()) continue;
    if (text[i] == ' ' && ends_word_character(text, i) && starts_word_character(text, i + 1)) return i;
    if (text[i] == '\n' && ends_word_character(text, i) && starts_word_character(text, i + 1)) return i + 1;
  }
  return 0;
}

std::size_t whole_characters(std::string_view text) {
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto lead = static_cast<unsigned char>(text[text.size() - back]);
    if ((lead & 0xC0) == 0x80) continue;
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace shoal
