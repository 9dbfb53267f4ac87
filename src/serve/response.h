// Answers to requests for completions, whole and as server-sent events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/completion.h"
#include "serve/request.h"

namespace shoal::serve {

// The lines that all chunks of an answer share.
struct AnswerHead {
  std::string id;            // "cmpl-..."
  std::int64_t created = 0;  // Unix time
  std::string model;
};

struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
};

// A new id, and the time.
AnswerHead make_head(const std::string& model);

// The object of a whole answer, from all pieces of all choices in the order in which they came.
std::string completion_json(const AnswerHead& head, const CompletionRequest& request,
                            const Tokenizer& tokenizer, std::vector<ChoicePiece> pieces, const Usage& usage);

// The event of one piece: "data: {...}\n\n".
std::string event_of(const AnswerHead& head, const CompletionRequest& request, const Tokenizer& tokenizer,
                     const ChoicePiece& piece);

// The last events: the usage where the request wants it, and "data: [DONE]".
std::string last_events(const AnswerHead& head, const CompletionRequest& request, const Usage& usage);

std::string models_json(const std::string& model, std::int64_t created);
std::string model_json(const std::string& model, std::int64_t created);

}  // namespace shoal::serve
