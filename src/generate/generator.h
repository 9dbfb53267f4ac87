// Text from a model: a prompt is continued token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "generate/beam_search.h"
#include "generate/sample_token.h"

namespace shoal {

struct GeneratedToken {
  std::int32_t id = 0;
  std::optional<Logprobs> logprobs = {};  // where the options ask for them
};

// The part of a text that the model sees: all of it while it fits block_size. Learned positions cannot slide,
// so a longer text, prompt or grown, is cut to its last block_size / 2 tokens, which are then positions 0, 1,
// ... and the window grows again. The cache changes nothing about that, nor any token.
class Generator {
 public:
  // Takes all the memory it will ever need, for `texts` texts at a time. Throws Error when the backend cannot
  // give it. `capture` as for Decoder. In a tensor-parallel group rank 0 makes the texts, and the other ranks
  // follow() until it calls dismiss().
  Generator(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts = 1,
            const TensorGroup& tensor = {}, bool capture = false);
  ~Generator();
  void follow() { decoder_.follow(); }
  void dismiss() { decoder_.dismiss(); }

  // Returns false to stop the text.
  using OnToken = std::function<bool(const GeneratedToken&)>;

  // Takes the logprobs of the prompt's tokens from the second on, each with the options.logprobs most likely
  // ones (none below 1).
  using OnPrompt = std::function<void(std::vector<Logprobs>)>;

  // Begins to continue `prompt` (one token or more) by up to options.max_tokens tokens, each handed to
  // on_token as it is made. The token at position p of the text is drawn with Philox(options.seed; p,
  // sample_index), so that a text depends neither on those generated before it nor on those beside it. Where
  // on_prompt is given it is called once before the first token, even with max_tokens = 0. Throws UserError
  // for an empty prompt, a token that the model does not know, options out of range, and a prompt longer than
  // block_size that on_prompt asks about; Error when no place is free.
  void begin(std::span<const std::int32_t> prompt, const SampleOptions& options, std::int64_t sample_index,
             OnToken on_token, OnPrompt on_prompt = {});
  // Makes one token of every text; texts that end give up their places. Returns how many go on.
  int step();
  int free_places() const;

  // One text from begin to end.
  void generate(std::span<const std::int32_t> prompt, const SampleOptions& options, std::int64_t sample_index,
                const OnToken& on_token);

  // See beam_search.h; while no text is under way.
  std::vector<BeamText> search(std::span<const std::int32_t> prompt, const BeamOptions& options,
                               const std::function<bool()>& stop = {});

  // The number of tokens at the end of a text of `length` that the model reads first.
  static std::int64_t window(std::int64_t length, const GptConfig& config);

 private:
  struct Text;
  void score_prompt(int number, Text& text);

  Decoder decoder_;
  std::vector<std::unique_ptr<Text>> texts_;  // by the decoder's number; null where a place is free
};

}  // namespace shoal
