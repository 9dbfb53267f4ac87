#include "serve/choice_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.h"

namespace shoal::serve {
namespace {

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; });
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, std::int32_t id) {
  const auto bytes = tokenizer.decode({&id, 1});
  if (is_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const std::vector<std::string>& stops, bool records)
    : tokenizer_(tokenizer), records_(records), filter_(stops) {}

Piece ChoiceText::echo(std::span<const std::int32_t> prompt, const std::vector<Logprobs>& logprobs) {
  std::string text;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const auto bytes = tokenizer_.decode(prompt.subspan(i, 1));
    record(prompt[i], bytes, i > 0 && records_ ? std::optional(logprobs.at(i - 1)) : std::nullopt);
    text += joiner_.push(bytes);
  }
  return release(std::move(text));
}

Piece ChoiceText::push(const GeneratedToken& token) {
  if (token.id == tokenizer_.end_of_text()) {
    auto piece = release(joiner_.push(filter_.finish()) + joiner_.finish());
    piece.finish_reason = "stop";
    return piece;
  }
  const auto bytes = tokenizer_.decode({&token.id, 1});
  record(token.id, bytes, token.logprobs);
  auto text = joiner_.push(filter_.push(bytes));
  if (!filter_.stopped()) return release(std::move(text));
  auto piece = release(text + joiner_.finish());
  piece.finish_reason = "stop";
  return piece;
}

Piece ChoiceText::finish() {
  auto piece = release(joiner_.push(filter_.finish()) + joiner_.finish(), true);
  piece.finish_reason = "length";
  return piece;
}

void ChoiceText::record(std::int32_t id, const std::string& bytes, std::optional<Logprobs> logprobs) {
  if (!records_) return;
  held_.push_back({.text = token_text(tokenizer_, id), .offset = begun_, .logprobs = std::move(logprobs)});
  begun_ += characters(unfiltered_.push(bytes));
}

Piece ChoiceText::release(std::string text, bool all) {
  Piece piece{.text = std::move(text)};
  released_ += characters(piece.text);
  while (!held_.empty() && (all || held_.front().offset < released_)) {
    piece.tokens.push_back(std::move(held_.front()));
    held_.pop_front();
  }
  return piece;
}

}  // namespace shoal::serve
