#include "data/tokenizer_choice.h"

#include <charconv>

#include "core/error.h"
#include "core/text.h"
#include "data/byte_pairs.h"

namespace shoal {
namespace {

constexpr std::int64_t kSmallestTrained = 258;  // the bytes, one merge, end of text

std::int64_t parse_vocab_size(const std::string& text, std::size_t begin) {
  std::int64_t size = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data() + begin, end, size);
  if (error != std::errc() || stopped != end || size < kSmallestTrained || size > BytePairs::kMaxTokens) {
    fail_user(
        "the tokenizer \"{}\" has no size from {} to {}, as bpe:8192 has: the 256 bytes, merges and the end "
        "of text",
        text, kSmallestTrained, with_commas(BytePairs::kMaxTokens));
  }
  return size;
}

}  // namespace

TokenizerChoice parse_tokenizer_choice(const std::string& text) {
  using Kind = TokenizerChoice::Kind;
  constexpr std::string_view kTrained = "bpe:";
  if (text == "gpt2") return {Kind::gpt2};
  if (text == "char") return {Kind::chars};
  if (text == "bytes") return {Kind::bytes};
  if (text == "bpe") return {Kind::trained, parse_vocab_size(text, text.size())};
  if (text.starts_with(kTrained)) return {Kind::trained, parse_vocab_size(text, kTrained.size())};
  std::error_code ignored;
  if (std::filesystem::is_directory(text, ignored)) return {Kind::folder, 0, text};
  const auto near = nearest(text, {"gpt2", "char", "bytes", "bpe"});
  fail_user(
      "the tokenizer \"{}\" is unknown{}; it must be gpt2, char, bytes, bpe:SIZE (as bpe:8192), or a folder "
      "with vocab.json and merges.txt",
      text, near.empty() ? "" : ": did you mean " + near + "?");
}

}  // namespace shoal
