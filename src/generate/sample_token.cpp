#include "generate/sample_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <vector>

#include "core/error.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int32_t>;

void check_finite(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return !std::isfinite(logit); });
  if (bad == logits.end()) return;
  fail("the model's logit of token {} is {}: its weights are damaged, or its training diverged",
       bad - logits.begin(), *bad);
}

struct Likelier {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

// The `count` most likely tokens, the most likely first: one pass over the logits where few are wanted.
Ids most_likely(std::span<const float> logits, std::size_t count) {
  Ids ids(count);
  std::ranges::partial_sort_copy(std::views::iota(0, static_cast<std::int32_t>(logits.size())), ids,
                                 Likelier{logits});
  return ids;
}

struct Choice {
  std::int32_t id;
  double weight;
};

// The most likely of `choices` that together hold at least `share` of the weight of all of them.
void keep_nucleus(std::vector<Choice>& choices, double share, const Likelier& likelier) {
  double wanted = 0, held = 0;
  for (const auto& choice : choices) wanted += choice.weight;
  wanted *= share;
  // A heap, since the nucleus is small as a rule and the vocabulary large.
  const auto below = [&](const Choice& a, const Choice& b) { return likelier(b.id, a.id); };
  std::ranges::make_heap(choices, below);
  auto rest = choices.end();
  do {
    std::pop_heap(choices.begin(), rest, below);
    held += (--rest)->weight;
  } while (held < wanted && rest != choices.begin());
  choices.erase(choices.begin(), rest);
}

}  // namespace

void validate(const SampleOptions& options) {
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    fail_user("a temperature of {} makes no sense; give 0 (the most likely token) or more",
              options.temperature);
  }
  if (options.top_k < 0) fail_user("top-k {} is negative; give 0 (off) or more", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    fail_user("top-p {} is not a share of the probability; give more than 0 and at most 1 (off)",
              options.top_p);
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    fail_user("min-p {} is not a share of a probability; give 0 (off) to 1", options.min_p);
  }
  if (!(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty))) {
    fail_user("a repetition penalty of {} makes no sense; give 1 (off) or another number above 0",
              options.repetition_penalty);
  }
  for (const double penalty : {options.presence_penalty, options.frequency_penalty}) {
    if (!std::isfinite(penalty)) fail_user("a penalty of {} is not a number; give 0 (off)", penalty);
  }
  if (options.max_tokens < 0) fail_user("cannot make {} tokens; give 0 or more", options.max_tokens);
}

std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double uniform) {
  check_finite(logits);
  const auto most = std::ranges::max_element(logits);  // the first among equals
  if (options.temperature == 0) return static_cast<std::int32_t>(most - logits.begin());

  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  Ids ids;
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < logits.size()) {
    ids = most_likely(logits, static_cast<std::size_t>(options.top_k));
  } else {
    ids.resize(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
  }
  std::vector<Choice> choices;
  choices.reserve(ids.size());
  for (const auto id : ids)
    choices.push_back({id, std::exp((double{logit(id)} - double{*most}) / options.temperature)});
  if (options.top_p < 1) keep_nucleus(choices, options.top_p, Likelier{logits});
  if (options.min_p > 0) {  // the most likely token weighs 1
    std::erase_if(choices, [&](const Choice& choice) { return choice.weight < options.min_p; });
  }
  std::ranges::sort(choices, {}, &Choice::id);

  double total = 0;
  for (const auto& choice : choices) total += choice.weight;
  double left = uniform * total;
  std::int32_t chosen = 0;
  for (const auto& [id, weight] : choices) {
    if (weight == 0) continue;
    chosen = id;  // the last possible one, should rounding leave a rest
    if (left < weight) break;
    left -= weight;
  }
  return chosen;
}

LogSoftmax::LogSoftmax(std::span<const float> logits) : most_(*std::ranges::max_element(logits)) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most_);
  log_sum_ = std::log(sum);
}

std::span<const float> known_logits(std::span<const float> logits, std::int64_t vocab_size) {
  if (vocab_size == 0) return logits;
  return logits.first(std::min(logits.size(), static_cast<std::size_t>(vocab_size)));
}

Logprobs logprobs_of(std::span<const float> logits, std::int32_t chosen, int top) {
  const LogSoftmax softmax(logits);
  const auto logprob = [&](std::int32_t id) { return softmax(logits[static_cast<std::size_t>(id)]); };
  Logprobs result{.chosen = logprob(chosen), .top = {}};
  const auto count = std::min(static_cast<std::size_t>(std::max(top, 0)), logits.size());
  for (const auto id : most_likely(logits, count)) result.top.emplace_back(id, logprob(id));
  return result;
}

}  // namespace shoal
