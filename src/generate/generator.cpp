#include "generate/generator.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "generate/penalties.h"

namespace shoal {
namespace {

void check_prompt(std::span<const std::int32_t> prompt, const GptConfig& config) {
  if (prompt.empty()) fail_user("the prompt is empty: there is no token to start from");
  for (const auto token : prompt) {
    if (token < 0 || token >= config.vocab_size) {
      fail_user("token {} of the prompt is outside the model's vocabulary of {}", token, config.vocab_size);
    }
  }
}

double draw(std::uint64_t seed, std::uint64_t position, std::uint64_t sample) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  return to_unit(philox(philox_key(seed, PhiloxStream::sampling),
                        {low(position), low(position >> 32), low(sample), low(sample >> 32)}));
}

// The part of a text that the model sees.
class Window {
 public:
  Window(Decoder& decoder, bool cache) : decoder_(decoder), cache_(cache) {}

  // Brings the decoder to the end of `text`, which is the text of the last call and one token more.
  void read(std::span<const std::int32_t> text) {
    const auto length = static_cast<std::int64_t>(text.size());
    const bool fits = opened_ > 0 && length - begin_ <= decoder_.config().block_size;
    if (!fits) {
      opened_ = Generator::window(length, decoder_.config());
      begin_ = length - opened_;
    }
    const auto seen = text.subspan(static_cast<std::size_t>(begin_));
    const auto opened = static_cast<std::size_t>(opened_);
    if (fits && cache_) {
      decoder_.extend(seen.last(1));
    } else {
      decoder_.prefill(seen.first(opened));
      decoder_.extend(seen.subspan(opened));
    }
  }

 private:
  Decoder& decoder_;
  bool cache_;
  std::int64_t begin_ = 0;   // the window's first token
  std::int64_t opened_ = 0;  // its length when it was opened
};

}  // namespace

Generator::Generator(Backend& backend, UnitStore& store, const GptConfig& config, DType compute)
    : decoder_(backend, store, config, compute) {}

std::int64_t Generator::window(std::int64_t length, const GptConfig& config) {
  return length <= config.block_size ? length : std::max(1, config.block_size / 2);
}

void Generator::generate(std::span<const std::int32_t> prompt, const SampleOptions& options,
                         std::int64_t sample_index,
                         const std::function<bool(const GeneratedToken&)>& on_token) {
  validate(options);
  check_prompt(prompt, decoder_.config());
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  Window window(decoder_, options.cache);
  Penalties penalties(options, decoder_.config().vocab_size, prompt);
  for (std::int64_t made = 0; made < options.max_tokens; ++made) {
    window.read(text);
    auto logits = decoder_.logits();
    if (options.vocab_size > 0) {
      logits = logits.first(std::min(logits.size(), static_cast<std::size_t>(options.vocab_size)));
    }
    const double uniform = draw(options.seed, text.size(), static_cast<std::uint64_t>(sample_index));
    GeneratedToken token{.id = sample_token(penalties.apply(logits), options, uniform)};
    if (options.logprobs >= 0) token.logprobs = logprobs_of(logits, token.id, options.logprobs);
    text.push_back(token.id);
    penalties.add(token.id);
    if (!on_token(token)) return;
  }
}

}  // namespace shoal
