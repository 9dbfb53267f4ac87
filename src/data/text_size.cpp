#include "data/text_size.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

namespace shoal {
namespace {

constexpr std::int64_t kTokensAtOnce = 1 << 16;

class WordCount {
 public:
  void add(std::string_view text) {
    size_.bytes += static_cast<std::int64_t>(text.size());
    for (const char c : text) {
      const bool space = c == ' ' || (c >= '\t' && c <= '\r');
      size_.words += !space && !in_word_;
      in_word_ = !space;
    }
  }
  void separate() { in_word_ = false; }
  TextSize size() const { return size_; }

 private:
  TextSize size_;
  bool in_word_ = false;
};

}  // namespace

TextSize measure_text(const TokenFile& split, const Tokenizer& tokenizer) {
  WordCount count;
  const auto end_of_text = tokenizer.end_of_text();
  std::vector<std::int32_t> tokens;
  for (std::int64_t at = 1; at < split.size(); at += kTokensAtOnce) {
    tokens.resize(static_cast<std::size_t>(std::min(kTokensAtOnce, split.size() - at)));
    split.copy(at, tokens);
    for (auto begin = tokens.begin(); begin != tokens.end();) {
      const auto end = end_of_text ? std::find(begin, tokens.end(), *end_of_text) : tokens.end();
      count.add(tokenizer.decode(std::span(begin, end)));
      if (end == tokens.end()) break;
      count.separate();
      begin = end + 1;
    }
  }
  return count.size();
}

}  // namespace shoal
