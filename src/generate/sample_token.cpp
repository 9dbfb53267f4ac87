#include "generate/sample_token.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace shoal {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::size_t kBlock = 64;

// The highest logit of each block of kBlock, and whether all logits are finite: one pass with vectors.
struct Peaks {
  explicit Peaks(std::span<const float> logits) {
    constexpr auto kNone = -std::numeric_limits<float>::infinity();
    constexpr std::size_t kLanes = 8;
    std::array<float, kLanes> zero{};  // not if it was added what is not finite, times 0
    of_blocks.reserve(logits.size() / kBlock + 1);
    for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
      const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
      std::array<float, kLanes> most;
      most.fill(kNone);
      const auto look = [&](std::size_t lane, float logit) {
        most[lane] = logit > most[lane] ? logit : most[lane];
        zero[lane] += 0 * logit;
      };
      std::size_t i = 0;
      for (; i + kLanes <= block.size(); i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) look(lane, block[i + lane]);
      }
      for (; i < block.size(); ++i) look(0, block[i]);
      of_blocks.push_back(std::ranges::max(most));
    }
    finite = std::ranges::all_of(zero, [](float sum) { return sum == 0; });
  }

  std::vector<float> of_blocks;
  bool finite = true;
};

[[noreturn]] void fail_not_finite(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return !std::isfinite(logit); });
  fail("the model's logit of token {} is {}: its weights are damaged, or its training diverged",
       bad - logits.begin(),
       std::isnan(*bad) ? "nan"
       : *bad > 0       ? "inf"
                        : "-inf");  // NaN has a sign
}

// The first among equals.
std::int32_t most_likely(std::span<const float> logits, const Peaks& peaks) {
  const auto peak = std::ranges::max_element(peaks.of_blocks);
  const auto begin = static_cast<std::size_t>(peak - peaks.of_blocks.begin()) * kBlock;
  return static_cast<std::int32_t>(std::ranges::find(logits.subspan(begin), *peak) - logits.begin());
}

struct Likelier {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

// The `count` most likely tokens, the most likely first.
Ids most_likely(std::span<const float> logits, std::size_t count, const Peaks& peaks) {
  if (count == 0) return {};
  // So many logits at least are as high as the lowest of so many highest peaks, and few others are.
  auto least = -std::numeric_limits<float>::infinity();
  if (count <= peaks.of_blocks.size()) {
    auto highest = peaks.of_blocks;
    const auto last = highest.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::ranges::nth_element(highest, last, std::greater{});
    least = *last;
  }
  Ids ids;
  for (std::size_t block = 0; block < peaks.of_blocks.size(); ++block) {
    if (peaks.of_blocks[block] < least) continue;
    const std::size_t end = std::min(logits.size(), (block + 1) * kBlock);
    for (std::size_t id = block * kBlock; id < end; ++id) {
      if (logits[id] >= least) ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  count = std::min(count, ids.size());
  std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), Likelier{logits});
  ids.resize(count);
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
  const double repetition = options.repetition_penalty;
  if (!(repetition >= kLeastRepetitionPenalty && repetition <= kMostRepetitionPenalty)) {
    fail_user("a repetition penalty of {} makes no sense; give {} to {}, where 1 is off", repetition,
              kLeastRepetitionPenalty, kMostRepetitionPenalty);
  }
  for (const double penalty : {options.presence_penalty, options.frequency_penalty}) {
    if (!(std::abs(penalty) <= kMostPenalty))
      fail_user("a penalty of {} makes no sense; give {} to {}, where 0 is off", penalty, -kMostPenalty,
                kMostPenalty);
  }
  if (options.max_tokens < 0) fail_user("cannot make {} tokens; give 0 or more", options.max_tokens);
}

std::int32_t sample_token(std::span<const float> logits, const SampleOptions& options, double uniform) {
  const Peaks peaks(logits);
  if (!peaks.finite) fail_not_finite(logits);
  const auto most = most_likely(logits, peaks);
  if (options.temperature == 0) return most;

  const auto logit = [&](std::int32_t id) { return double{logits[static_cast<std::size_t>(id)]}; };
  Ids ids;
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < logits.size()) {
    ids = most_likely(logits, static_cast<std::size_t>(options.top_k), peaks);
  } else {
    ids.resize(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
  }
  std::vector<Choice> choices;
  choices.reserve(ids.size());
  for (const auto id : ids)
    choices.push_back({id, std::exp((logit(id) - logit(most)) / options.temperature)});
  if (options.top_p < 1) keep_nucleus(choices, options.top_p, Likelier{logits});
  if (options.min_p > 0) {  // the most likely token weighs 1
    std::erase_if(choices, [&](const Choice& choice) { return choice.weight < options.min_p; });
  }
  // All tokens are sorted, and many.
  if (!std::ranges::is_sorted(choices, {}, &Choice::id)) std::ranges::sort(choices, {}, &Choice::id);

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

std::span<const float> known_logits(std::span<const float> logits, std::int64_t vocab_size) {
  if (vocab_size == 0) return logits;
  return logits.first(std::min(logits.size(), static_cast<std::size_t>(vocab_size)));
}

Logprobs logprobs_of(std::span<const float> logits, std::int32_t chosen, int top) {
  const Peaks peaks(logits);
  if (!peaks.finite) fail_not_finite(logits);
  const double most = std::ranges::max(peaks.of_blocks);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - most);
  const double log_sum = std::log(sum);
  const auto logprob = [&](std::int32_t id) {
    return double{logits[static_cast<std::size_t>(id)]} - most - log_sum;
  };
  Logprobs result{.chosen = logprob(chosen), .top = {}};
  const auto count = std::min(static_cast<std::size_t>(std::max(top, 0)), logits.size());
  for (const auto id : most_likely(logits, count, peaks)) result.top.emplace_back(id, logprob(id));
  return result;
}

}  // namespace shoal
