#include "data/gpt2_split.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "core/utf8.h"

namespace shoal {
namespace {

// Unicode's White_Space, which is \s in the pattern; the general categories lack the control characters.
bool is_white_space(std::uint32_t code_point, utf8proc_category_t category) {
  return (code_point >= 0x09 && code_point <= 0x0D) || code_point == 0x85 ||
         (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

struct Range {
  std::uint32_t first, last;
};

// Letters that Unicode 15.1 and 16 added, since utf8proc may know only 15.0.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E},
    {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                 {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                 {0x1E5F1, 0x1E5FA}};

}  // namespace

Gpt2Splitter::Gpt2Splitter() {
  std::vector<std::array<Kind, 256>> pages(page_.size());
  // The planes from 4 up have tags and private use, but no letters, numbers or spaces.
  for (std::uint32_t code_point = 0; code_point < 0x40000; ++code_point) {
    const utf8proc_category_t category = utf8proc_category(static_cast<std::int32_t>(code_point));
    Kind& kind = pages[code_point >> 8][code_point & 0xFF];
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) kind = kLetter;
    if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) kind = kNumber;
    if (is_white_space(code_point, category)) kind = kSpace;
  }
  const auto assign = [&](std::span<const Range> ranges, Kind kind) {
    for (const Range& range : ranges) {
      for (std::uint32_t c = range.first; c <= range.last; ++c) pages[c >> 8][c & 0xFF] = kind;
    }
  };
  assign(kNewLetters, kLetter);
  assign(kNewNumbers, kNumber);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto found = std::find(pages_.begin(), pages_.end(), pages[i]);
    page_[i] = static_cast<std::uint16_t>(found - pages_.begin());
    if (found == pages_.end()) pages_.push_back(pages[i]);
  }
  by_byte_ = pages_[page_[0]];
  std::fill(by_byte_.begin() + 0x80, by_byte_.end(), kMultibyte);
}

Gpt2Splitter::Symbol Gpt2Splitter::multibyte_at(std::string_view text, std::size_t at) const {
  const CodePoint code_point = decode_utf8(text, at);
  if (code_point.length == 0) return {kOther, 1};
  return {pages_[page_[code_point.value >> 8]][code_point.value & 0xFF],
          static_cast<std::size_t>(code_point.length)};
}

}  // namespace shoal
