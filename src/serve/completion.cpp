#include "serve/completion.h"

#include <iterator>
#include <utility>

namespace shoal::serve {

Completion::Completion(CompletionRequest request, const Tokenizer& tokenizer)
    : request_(std::move(request)),
      texts_(request_.choices(), ChoiceText(tokenizer, request_.stops, request_.sampling.logprobs >= 0)),
      made_(request_.choices()),
      unfinished_(request_.choices()) {}

const CompletionPrompt& Completion::prompt_of(std::size_t choice) const {
  return request_.prompts[choice / static_cast<std::size_t>(request_.n)];
}

std::int64_t Completion::sample_index(std::size_t choice) const {
  return static_cast<std::int64_t>(choice % static_cast<std::size_t>(request_.n));
}

bool Completion::scores_prompt(std::size_t choice) const {
  return request_.echo && request_.sampling.logprobs >= 0 && !prompt_of(choice).empty;
}

bool Completion::wanted() const {
  const std::lock_guard lock(mutex_);
  return !cancelled_;
}

void Completion::begin(std::size_t choice, const std::vector<Logprobs>& prompt_logprobs) {
  const auto& prompt = prompt_of(choice);
  if (request_.echo && !prompt.empty) put(choice, texts_[choice].echo(prompt.tokens, prompt_logprobs));
  if (request_.sampling.max_tokens == 0) put(choice, texts_[choice].finish());
}

bool Completion::add(std::size_t choice, const GeneratedToken& token) {
  auto& text = texts_[choice];
  auto piece = text.push(token);
  if (++made_[choice] == request_.sampling.max_tokens && !piece.finish_reason) {
    auto rest = text.finish();
    piece.text += rest.text;
    std::ranges::move(rest.tokens, std::back_inserter(piece.tokens));
    piece.finish_reason = rest.finish_reason;
  }
  const bool goes_on = !piece.finish_reason;
  {
    const std::lock_guard lock(mutex_);
    ++made_tokens_;
    if (cancelled_) return false;
  }
  if (!piece.text.empty() || !goes_on) put(choice, std::move(piece));
  return goes_on;
}

void Completion::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failure_ = why;
  changed_.notify_one();
}

void Completion::put(std::size_t choice, Piece piece) {
  const std::lock_guard lock(mutex_);
  if (piece.finish_reason) --unfinished_;
  pieces_.push_back({choice, std::move(piece)});
  changed_.notify_one();
}

void Completion::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

Completion::Taken Completion::take(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return !pieces_.empty() || unfinished_ == 0 || !failure_.empty(); });
  Taken taken{.pieces = {}, .finished = unfinished_ == 0, .failure = failure_};
  taken.pieces.assign(std::move_iterator(pieces_.begin()), std::move_iterator(pieces_.end()));
  pieces_.clear();
  return taken;
}

std::int64_t Completion::prompt_tokens() const {
  std::int64_t tokens = 0;
  for (const auto& prompt : request_.prompts) tokens += std::ssize(prompt.tokens);
  return tokens;
}

std::int64_t Completion::made_tokens() const {
  const std::lock_guard lock(mutex_);
  return made_tokens_;
}

}  // namespace shoal::serve
