#include "data/char_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/utf8.h"

namespace shoal {
namespace {

// "line 3, column 7", both from 1, columns in characters.
std::string place_in(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::string_view row = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
  const auto column = std::count_if(row.begin(), row.end(), [](char c) { return (c & 0xC0) != 0x80; }) + 1;
  return fmt::format("line {}, column {}", line, column);
}

// Calls use(code point, offset) for every character.
template <typename Use>
void for_each_character(std::string_view text, Use use) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code_point = decode_utf8(text, at);
    if (code_point.length == 0) {
      fail_user(
          "the text is not UTF-8: byte 0x{:02X} at offset {} ({}); convert it to UTF-8, or use the tokenizer "
          "bytes or gpt2, which take any bytes",
          static_cast<std::uint8_t>(text[at]), at, place_in(text, at));
    }
    use(code_point.value, at);
    at += static_cast<std::size_t>(code_point.length);
  }
}

std::string describe(char32_t code_point) {
  std::string name = fmt::format("U+{:04X}", static_cast<std::uint32_t>(code_point));
  if (code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) return name;
  std::string character;
  append_utf8(character, code_point);
  return fmt::format("\"{}\" ({})", character, name);
}

class CharTokenizer final : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<char32_t> characters) : characters_(std::move(characters)) {
    ids_.assign(*std::max_element(characters_.begin(), characters_.end()) + 1, kNone);
    for (std::size_t i = 0; i < characters_.size(); ++i) ids_[characters_[i]] = static_cast<std::int32_t>(i);
  }

  std::string_view name() const override { return "char"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(characters_.size()); }
  std::optional<std::int32_t> end_of_text() const override { return std::nullopt; }

  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    for_each_character(text, [&](char32_t character, std::size_t at) {
      const std::int32_t id = character < ids_.size() ? ids_[character] : kNone;
      if (id == kNone) {
        fail_user(
            "the character {} at offset {} ({}) is not among the {} characters of the vocabulary; remove it "
            "from the text, or prepare the data again with a text that has it or with the tokenizer bytes or "
            "gpt2",
            describe(character), at, place_in(text, at), characters_.size());
      }
      out.push_back(id);
    });
  }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) {
      if (token < 0 || token >= vocab_size()) {
        fail_user("token {} is outside the vocabulary of {} characters", token, vocab_size());
      }
      append_utf8(text, characters_[static_cast<std::size_t>(token)]);
    }
    return text;
  }

  nlohmann::json to_json() const override {
    std::string vocabulary;
    for (const char32_t character : characters_) append_utf8(vocabulary, character);
    return {{"name", name()}, {"vocabulary", vocabulary}};
  }

 private:
  static constexpr std::int32_t kNone = -1;
  std::vector<char32_t> characters_;  // by id
  std::vector<std::int32_t> ids_;     // by code point
};

}  // namespace

void CharVocabulary::add(std::string_view text) {
  for_each_character(text, [&](char32_t character, std::size_t) { seen_.set(character); });
}

std::unique_ptr<Tokenizer> CharVocabulary::build() const {
  if (seen_.none()) fail_user("the text is empty, so it gives no characters for a vocabulary");
  std::vector<char32_t> characters;
  for (char32_t c = 0; c < seen_.size(); ++c) {
    if (seen_[c]) characters.push_back(c);
  }
  return std::make_unique<CharTokenizer>(std::move(characters));
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text) {
  CharVocabulary vocabulary;
  vocabulary.add(text);
  return vocabulary.build();
}

std::unique_ptr<Tokenizer> make_char_tokenizer_of(std::string_view vocabulary, std::string_view source) {
  std::vector<char32_t> characters;
  std::bitset<0x110000> seen;
  for_each_character(vocabulary, [&](char32_t character, std::size_t) {
    if (seen[character]) fail_user("{}: the vocabulary lists {} twice", source, describe(character));
    seen.set(character);
    characters.push_back(character);
  });
  if (characters.empty()) fail_user("{}: the vocabulary is empty", source);
  return std::make_unique<CharTokenizer>(std::move(characters));
}

}  // namespace shoal
