// A request on its way: the scheduler's thread makes its texts, a connection's thread takes them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/choice_text.h"
#include "serve/request.h"

namespace shoal::serve {

struct ChoicePiece {
  std::size_t choice;
  Piece piece;
};

// Texts wait here for a slow reader: as many pieces as the request has tokens, at most.
class Completion {
 public:
  using Clock = std::chrono::steady_clock;

  Completion(CompletionRequest request, const Tokenizer& tokenizer);

  const CompletionRequest& request() const { return request_; }
  const CompletionPrompt& prompt_of(std::size_t choice) const;
  std::int64_t sample_index(std::size_t choice) const;  // texts of one prompt differ by it
  bool scores_prompt(std::size_t choice) const;         // echo with logprobs

  // The scheduler's side. begin() comes first, for each choice.
  bool wanted() const;  // the connection is still there
  void begin(std::size_t choice, const std::vector<Logprobs>& prompt_logprobs);
  bool add(std::size_t choice, const GeneratedToken& token);  // false: the text is at its end
  void fail(const std::string& why);

  // The connection's side.
  void cancel();  // nobody takes pieces any more
  struct Taken {
    std::vector<ChoicePiece> pieces;  // none where the time ran out
    bool finished = false;            // there are no more
    std::string failure;              // not empty: fail() was called
  };
  Taken take(Clock::time_point until);

  // Counts, exact once the last piece was taken.
  std::int64_t prompt_tokens() const;
  std::int64_t made_tokens() const;

 private:
  void put(std::size_t choice, Piece piece);

  const CompletionRequest request_;
  std::vector<ChoiceText> texts_;   // the scheduler's thread only
  std::vector<std::int64_t> made_;  // the same
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ChoicePiece> pieces_;
  std::size_t unfinished_;
  std::int64_t made_tokens_ = 0;
  bool cancelled_ = false;
  std::string failure_;
};

}  // namespace shoal::serve
