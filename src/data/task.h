// Tasks with known answers: multiple choice, and the last word of a text. Texts are made of a file's items,
// and tokens of texts, as lm-evaluation-harness 0.4 makes them, so that a model scores the same there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace shoal {

struct TaskItem {
  std::string context;
  std::vector<std::string> choices;  // that may follow it; a last word is the only one
  int answer = 0;
};

struct Task {
  enum class Kind : std::uint8_t { choice, last_word };
  std::string name;  // the file's, without its ending
  Kind kind = Kind::choice;
  std::vector<TaskItem> items;
};

// Reads lines of JSON, all of one of these kinds:
//   HellaSwag's: activity_label, ctx_a, ctx_b, endings, label
//   LAMBADA's: text, whose last word is to be found
//   any: context, choices, answer (a number from 0)
// Throws UserError, naming file and line, when one is neither of them or is not like the first.
Task read_task(const std::filesystem::path& file);

// A choice behind its context, as tokens: the last `targets` of them are the choice's. A context that is too
// long loses its beginning.
struct TaskSequence {
  std::vector<std::int32_t> tokens;
  std::int64_t targets = 0;
};

// The sequence of at most `positions` + 1 tokens. A choice follows a blank. Spaces between both are the
// choice's, and a context that is empty is the end-of-text token. Throws UserError when the choice alone is
// longer, or the tokenizer lacks a character or the token.
TaskSequence make_sequence(const TaskItem& item, int choice, const Tokenizer& tokenizer,
                           std::int64_t positions);

// The number of characters of a choice, by which sums of log-probabilities are divided.
std::int64_t characters_of(const std::string& text);

}  // namespace shoal
