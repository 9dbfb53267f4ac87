// GPT-2's pre-tokenization: cuts a text into pieces; byte-level BPE then merges only within a piece. The
// result is the same as that of matching
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// repeatedly, but in one pass and without a regex. A byte that is not part of valid UTF-8 counts as a symbol
// of the third kind, [^\s\p{L}\p{N}], so every byte string has one split.
//
// Letters and numbers are those of Unicode 16, as in current implementations; a newer utf8proc adds its own.
// A character that is unassigned there counts as a symbol. Between versions of Unicode, the ids differ only
// where a merge joins the last bytes of such a character to the first ones of the next.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace shoal {

class Gpt2Splitter {
 public:
  Gpt2Splitter();

  // The end of the piece that starts at `begin`. `begin` must be 0 or the end of the previous piece, and less
  // than text.size().
  std::size_t piece_end(std::string_view text, std::size_t begin) const {
    const Symbol first = symbol_at(text, begin);
    if (first.kind == kSpace) return space_piece_end(text, begin, first.length);
    if (text[begin] == '\'') {
      if (const std::size_t length = contraction_length(text.substr(begin + 1))) return begin + 1 + length;
    }
    return run_end(text, begin + first.length, first.kind);
  }

 private:
  enum Kind : std::uint8_t { kOther, kLetter, kNumber, kSpace, kMultibyte };
  struct Symbol {
    Kind kind;
    std::size_t length;
  };

  Symbol symbol_at(std::string_view text, std::size_t at) const {
    const Kind kind = by_byte_[static_cast<std::uint8_t>(text[at])];
    return kind == kMultibyte ? multibyte_at(text, at) : Symbol{kind, 1};
  }

  std::size_t run_end(std::string_view text, std::size_t at, Kind kind) const {
    while (at < text.size()) {
      const Symbol symbol = symbol_at(text, at);
      if (symbol.kind != kind) break;
      at += symbol.length;
    }
    return at;
  }

  // A run of white space before another symbol leaves its last space to that symbol's piece (" ?" in the
  // pattern). Other white space is a piece of its own.
  std::size_t space_piece_end(std::string_view text, std::size_t begin, std::size_t length) const {
    std::size_t last = begin;  // the start of the run's last symbol
    std::size_t at = begin + length;
    while (at < text.size()) {
      const Symbol symbol = symbol_at(text, at);
      if (symbol.kind != kSpace) {
        if (last > begin) return last;
        return text[last] == ' ' ? run_end(text, at + symbol.length, symbol.kind) : at;
      }
      last = at;
      at += symbol.length;
    }
    return at;
  }

  // The number of letters after an apostrophe that belong to a contraction: 1 for s t m d, 2 for re ve ll,
  // else 0.
  static std::size_t contraction_length(std::string_view rest) {
    if (rest.empty()) return 0;
    const char c = rest[0];
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return 1;
    if (rest.size() < 2) return 0;
    return (rest[1] == 'e' && (c == 'r' || c == 'v')) || (rest[1] == 'l' && c == 'l') ? 2 : 0;
  }

  Symbol multibyte_at(std::string_view text, std::size_t at) const;

  std::array<Kind, 256> by_byte_{};           // of ASCII; kMultibyte from 0x80 up
  std::array<std::uint16_t, 0x1100> page_{};  // of a code point's upper bits
  std::vector<std::array<Kind, 256>> pages_;  // without duplicates
};

}  // namespace shoal
