#include "generate/generator.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "generate/penalties.h"

namespace shoal {
namespace {

void check_prompt(std::span<const std::int32_t> prompt, std::int64_t vocab_size) {
  if (prompt.empty()) fail_user("the prompt is empty: there is no token to start from");
  for (const auto token : prompt) {
    if (token < 0 || token >= vocab_size) {
      fail_user("token {} of the prompt is outside the model's vocabulary of {}", token, vocab_size);
    }
  }
}

double draw(std::uint64_t seed, std::uint64_t position, std::uint64_t sample) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  return to_unit(philox(philox_key(seed, PhiloxStream::sampling),
                        {low(position), low(position >> 32), low(sample), low(sample >> 32)}));
}

}  // namespace

struct Generator::Text {
  std::vector<std::int32_t> tokens;
  SampleOptions options;
  std::uint64_t sample;
  OnToken on_token;
  OnPrompt on_prompt;
  Penalties penalties;
  std::int64_t made = 0;
  // The window: its first token, and its length when it was opened.
  std::int64_t begin = 0, opened = 0;
};

Generator::Generator(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts,
                     const TensorGroup& tensor, bool capture)
    : decoder_(backend, store, config, compute, texts, tensor, capture),
      texts_(static_cast<std::size_t>(texts)) {}

Generator::~Generator() = default;

std::int64_t Generator::window(std::int64_t length, const GptConfig& config) {
  return length <= config.block_size ? length : std::max(1, config.block_size / 2);
}

int Generator::free_places() const {
  return static_cast<int>(std::ranges::count_if(texts_, std::logical_not()));
}

void Generator::begin(std::span<const std::int32_t> prompt, const SampleOptions& options,
                      std::int64_t sample_index, OnToken on_token, OnPrompt on_prompt) {
  validate(options);
  const auto vocab_size = decoder_.config().vocab_size;
  const bool few = on_prompt && options.vocab_size > 0;  // ids with a logprob
  check_prompt(prompt, few ? std::min<std::int64_t>(vocab_size, options.vocab_size) : vocab_size);
  if (on_prompt && std::ssize(prompt) > decoder_.config().block_size) {
    fail_user("the prompt has {} tokens, but the model sees {} at a time, so it cannot give their logprobs",
              prompt.size(), decoder_.config().block_size);
  }
  if (options.max_tokens == 0 && !on_prompt) return;
  const auto place = std::ranges::find_if(texts_, std::logical_not());
  if (place == texts_.end()) fail("all {} places for texts are taken", texts_.size());
  *place = std::make_unique<Text>(Text{.tokens = {prompt.begin(), prompt.end()},
                                       .options = options,
                                       .sample = static_cast<std::uint64_t>(sample_index),
                                       .on_token = std::move(on_token),
                                       .on_prompt = std::move(on_prompt),
                                       .penalties = {options, vocab_size, prompt}});
}

void Generator::score_prompt(int number, Text& text) {
  std::vector<Logprobs> scores;
  decoder_.prefill(number, text.tokens, [&](std::int64_t position, std::span<const float> logits) {
    const auto next = static_cast<std::size_t>(position) + 1;
    if (next == text.tokens.size()) return;
    scores.push_back(
        logprobs_of(known_logits(logits, text.options.vocab_size), text.tokens[next], text.options.logprobs));
  });
  text.opened = std::ssize(text.tokens);
  std::exchange(text.on_prompt, {})(std::move(scores));
}

int Generator::step() {
  std::vector<int> active;
  std::vector<Decoder::Token> next;  // of texts that were read up to their last token
  for (int i = 0; i < static_cast<int>(texts_.size()); ++i) {
    auto& place = texts_[static_cast<std::size_t>(i)];
    if (!place) continue;
    auto* text = place.get();
    const bool scored = static_cast<bool>(text->on_prompt);
    if (scored) score_prompt(i, *text);
    if (text->options.max_tokens == 0) {
      place.reset();
      continue;
    }
    active.push_back(i);
    if (scored) continue;  // the whole prompt was read
    const auto length = std::ssize(text->tokens);
    const bool fits = text->opened > 0 && length - text->begin <= decoder_.config().block_size;
    if (!fits) {
      text->opened = window(length, decoder_.config());
      text->begin = length - text->opened;
    }
    const auto seen = std::span(text->tokens).subspan(static_cast<std::size_t>(text->begin));
    if (fits && text->options.cache) {
      next.push_back({i, seen.back()});
      continue;
    }
    decoder_.prefill(i, seen.first(static_cast<std::size_t>(text->opened)));
    for (const auto id : seen.subspan(static_cast<std::size_t>(text->opened))) next.push_back({i, id});
  }
  decoder_.extend(next);
  for (const int number : active) {
    auto& place = texts_[static_cast<std::size_t>(number)];
    auto& text = *place;
    const auto logits = known_logits(decoder_.logits(number), text.options.vocab_size);
    const double uniform = draw(text.options.seed, text.tokens.size(), text.sample);
    GeneratedToken token{.id = sample_token(text.penalties.apply(logits), text.options, uniform)};
    if (text.options.logprobs >= 0) token.logprobs = logprobs_of(logits, token.id, text.options.logprobs);
    text.tokens.push_back(token.id);
    text.penalties.add(token.id);
    if (!text.on_token(token) || ++text.made == text.options.max_tokens) place.reset();
  }
  return static_cast<int>(texts_.size()) - free_places();
}

std::vector<BeamText> Generator::search(std::span<const std::int32_t> prompt, const BeamOptions& options,
                                        const std::function<bool()>& stop) {
  check_prompt(prompt, decoder_.config().vocab_size);
  const auto places = std::ssize(texts_);
  if (options.beams > places || free_places() < places)
    fail("{} beams need as many places and no other text, but {} of {} are free", options.beams,
         free_places(), places);
  return beam_search(decoder_, prompt, options, stop);
}

void Generator::generate(std::span<const std::int32_t> prompt, const SampleOptions& options,
                         std::int64_t sample_index, const OnToken& on_token) {
  begin(prompt, options, sample_index, on_token);
  while (step() > 0) {
  }
}

}  // namespace shoal
