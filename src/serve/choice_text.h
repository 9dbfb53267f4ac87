// A choice of an answer: tokens become pieces of text, cut at stop strings.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"
#include "generate/generator.h"
#include "generate/text_stream.h"

namespace shoal::serve {

// A token in "logprobs".
struct TokenRecord {
  std::string text;         // "bytes:\xe2\x82" where it is not whole characters
  std::int64_t offset = 0;  // in the choice's text, in characters; of a part of a character, the character's
  std::optional<Logprobs> logprobs = {};  // absent for the first token of a prompt
};

// The tokens of a piece begin within its text or before it.
struct Piece {
  std::string text;  // whole characters
  std::vector<TokenRecord> tokens = {};
  const char* finish_reason = nullptr;  // "stop" or "length" in the last piece
};

class ChoiceText {
 public:
  // `records`: pieces have tokens.
  ChoiceText(const Tokenizer& tokenizer, const std::vector<std::string>& stops, bool records);

  // The prompt, before the first token. `logprobs` are those of its tokens from the second on, with records.
  Piece echo(std::span<const std::int32_t> prompt, const std::vector<Logprobs>& logprobs);

  // The text that a token completes. A stop string or the end-of-text token is the end.
  Piece push(const GeneratedToken& token);

  // The end at the largest number of tokens.
  Piece finish();

 private:
  void record(std::int32_t id, const std::string& bytes, std::optional<Logprobs> logprobs);
  Piece release(std::string text, bool all = false);

  const Tokenizer& tokenizer_;
  bool records_;
  StopFilter filter_;
  Utf8Joiner joiner_;
  Utf8Joiner unfiltered_;                  // of all bytes, for offsets
  std::int64_t begun_ = 0, released_ = 0;  // characters of all bytes, and of the pieces so far
  std::deque<TokenRecord> held_;           // tokens whose text may still be cut off
};

// The bytes of a token as JSON may hold them.
std::string token_text(const Tokenizer& tokenizer, std::int32_t id);

}  // namespace shoal::serve
