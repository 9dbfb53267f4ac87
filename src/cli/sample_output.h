// The output of `shoal sample`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "generate/generator.h"
#include "generate/text_stream.h"

namespace shoal::cli {

struct SamplePrompt {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::string reference;  // of a prompt from the data: how they go on
};

struct Sample {
  std::int64_t index = 0;
  std::string prompt;
  std::string text = {};
  std::vector<GeneratedToken> tokens = {};
  bool finished = false;             // by a stop string or the end-of-text token
  std::optional<double> score = {};  // of beam search
};

using Print = std::function<void(std::string_view)>;

// Writes to standard output in whole characters.
class Terminal {
 public:
  void print(std::string_view bytes) { write(joiner_.push(bytes)); }
  void end_text();

 private:
  void write(std::string_view text);

  Utf8Joiner joiner_;
  bool at_line_start_ = true;
};

// The text before and behind a sample: the prompt, and with a reference headings and the reference.
void begin_text(const SamplePrompt& prompt, const Print& print);
void end_text(const SamplePrompt& prompt, const Print& print);

// One line of JSON.
std::string to_json(const Sample& sample, const Tokenizer& tokenizer);

}  // namespace shoal::cli
