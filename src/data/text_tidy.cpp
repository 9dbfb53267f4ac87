#include "data/text_tidy.h"

#include <algorithm>
#include <utility>

#include "core/utf8.h"
#include "data/text_cut.h"

namespace shoal {
namespace {

constexpr std::size_t kMostRuns = 4096;
constexpr std::size_t kPutSize = 1 << 16;  // a long run is written in pieces of this size

// White space of Python's str.strip, and NUL.
bool is_blank(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) || c == 0;
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// The blank character that starts at `at`; length 0 if the character there is not blank.
CodePoint blank_at(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead > ' ' && lead != 0xC2 && (lead < 0xE1 || lead > 0xE3)) return {};  // the usual case
  const auto point = decode_utf8(text, at);
  return point.length > 0 && is_blank(point.value) ? point : CodePoint{};
}

}  // namespace

void TextTidy::feed(std::string_view bytes) {
  if (carry_.empty()) {
    const auto whole = whole_characters(bytes);
    tidy(bytes.substr(0, whole));
    carry_ = bytes.substr(whole);
    return;
  }
  const auto joined = std::exchange(carry_, {}) + std::string(bytes);
  feed(joined);
}

void TextTidy::finish() {
  tidy(carry_);
  blanks_.clear();
}

void TextTidy::tidy(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (const auto blank = blank_at(text, i); blank.length > 0) {
      hold(blank.value);
      i += static_cast<std::size_t>(blank.length);
      continue;
    }
    release(blanks_.size());
    begun_ = true;
    after_return_ = false;
    const auto begin = i;
    // A single space between words stays in the run.
    while (++i < text.size()) {
      if (blank_at(text, i).length == 0) continue;
      if (text[i] != ' ' || i + 1 == text.size() || blank_at(text, i + 1).length > 0) break;
    }
    put_(text.substr(begin, i - begin));
  }
}

void TextTidy::hold(char32_t blank) {
  const bool second_half = after_return_ && blank == '\n';
  after_return_ = blank == '\r';
  if (!begun_ || second_half) return;
  if (blank == '\r') blank = '\n';
  if (!blanks_.empty() && blanks_.back().character == blank) {
    ++blanks_.back().count;
    return;
  }
  if (blanks_.size() == kMostRuns) release(kMostRuns / 2);
  blanks_.push_back({blank, 1});
}

void TextTidy::release(std::size_t runs) {
  if (runs == 0) return;
  std::string text;
  for (std::size_t i = 0; i < runs; ++i) {
    const auto [character, count] = blanks_[i];
    for (auto left = character == '\n' ? std::min<std::int64_t>(count, 2) : count; left > 0; --left) {
      append_utf8(text, character);
      if (text.size() < kPutSize) continue;
      put_(text);
      text.clear();
    }
  }
  put_(text);
  blanks_.erase(blanks_.begin(), blanks_.begin() + static_cast<std::ptrdiff_t>(runs));
}

}  // namespace shoal
