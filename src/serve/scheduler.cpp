#include "serve/scheduler.h"

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "core/error.h"

namespace shoal::serve {

void Scheduler::submit(const std::shared_ptr<Completion>& completion) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return completion->fail(failure_);
  for (std::size_t choice = 0; choice < completion->request().choices(); ++choice)
    waiting_.push_back({completion, choice});
  metrics_.set_waiting(std::ssize(waiting_));
  submitted_.notify_one();
}

void Scheduler::run(const std::function<bool()>& stop) {
  constexpr std::chrono::milliseconds kPause(20);
  int active = 0;
  try {
    while (!stop()) {
      std::vector<Text> next;
      {
        std::unique_lock lock(mutex_);
        if (active == 0) submitted_.wait_for(lock, kPause, [&] { return !waiting_.empty(); });
        // Also where no place is free: those whose clients left would pile up.
        std::erase_if(waiting_, [](const auto& text) { return !text.completion->wanted(); });
        const auto places = static_cast<std::size_t>(generator_.free_places());
        while (!waiting_.empty() && next.size() < places) {
          next.push_back(std::move(waiting_.front()));
          waiting_.pop_front();
        }
        std::erase_if(running_, [](const auto& completion) { return completion.expired(); });
        for (const auto& text : next) running_.push_back(text.completion);
        metrics_.set_waiting(std::ssize(waiting_));
      }
      for (const auto& text : next) begin(text);
      if (active == 0 && next.empty()) continue;
      active = generator_.step();
      metrics_.add_step(active);
    }
  } catch (const std::exception& error) {
    fail_all(error.what());
    throw;
  }
}

void Scheduler::begin(const Text& text) {
  auto& completion = *text.completion;
  const bool scores = completion.scores_prompt(text.choice);
  if (!scores) completion.begin(text.choice, {});
  Generator::OnPrompt on_prompt;
  if (scores) {
    on_prompt = [text](const std::vector<Logprobs>& logprobs) {
      text.completion->begin(text.choice, logprobs);
    };
  }
  const auto on_token = [this, text](const GeneratedToken& token) {
    metrics_.add_token();
    return text.completion->add(text.choice, token);
  };
  try {
    generator_.begin(completion.prompt_of(text.choice).tokens, completion.request().sampling,
                     completion.sample_index(text.choice), on_token, std::move(on_prompt));
  } catch (const UserError& error) {  // the request's own fault: the others go on
    completion.fail(error.what());
  }
}

void Scheduler::fail_all(const std::string& why) {
  const std::lock_guard lock(mutex_);
  failure_ = why;
  for (const auto& text : waiting_) text.completion->fail(why);
  waiting_.clear();
  for (const auto& one : running_) {
    if (const auto completion = one.lock()) completion->fail(why);
  }
}

}  // namespace shoal::serve
