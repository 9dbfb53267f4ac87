#include "generate/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "generate/sample_token.h"

namespace shoal {
namespace {

// A text that grows. Its beginning is in the decoder's text `place`.
struct Beam {
  int place = 0;
  BeamText text = {};
  double sum = 0;  // of logprobs
};

struct Candidate {
  std::size_t beam;
  std::int32_t token;
  double logprob, sum;
};

class BeamSearch {
 public:
  BeamSearch(Decoder& decoder, const BeamOptions& options) : decoder_(decoder), options_(options) {}

  std::vector<BeamText> run(std::span<const std::int32_t> prompt, const std::function<bool()>& stop) {
    decoder_.prefill(0, prompt);
    beams_.push_back({});
    for (std::int64_t length = 1; length <= options_.max_tokens; ++length) {
      grow();
      if (is_over(length) || beams_.empty() || (stop && stop())) break;
      if (length < options_.max_tokens) read();
    }
    for (auto& beam : beams_) end(std::move(beam.text), beam.sum);
    return std::move(ended_);
  }

 private:
  std::size_t width() const { return static_cast<std::size_t>(options_.beams); }

  // The best continuations of all beams, twice as many as beams are kept: enough even if each beam ends.
  std::vector<Candidate> candidates() {
    std::vector<Candidate> all;
    for (std::size_t i = 0; i < beams_.size(); ++i) {
      const auto logits = known_logits(decoder_.logits(beams_[i].place), options_.vocab_size);
      for (const auto& [id, logprob] : logprobs_of(logits, 0, 2 * options_.beams).top)
        all.push_back({i, id, logprob, beams_[i].sum + logprob});
    }
    const auto kept = std::min(2 * width(), all.size());
    std::ranges::partial_sort(all, all.begin() + static_cast<std::ptrdiff_t>(kept),
                              [](const Candidate& a, const Candidate& b) {
                                if (a.sum != b.sum) return a.sum > b.sum;
                                return std::pair(a.beam, a.token) < std::pair(b.beam, b.token);
                              });
    all.resize(kept);
    return all;
  }

  // Replaces the beams by the best ones that are a token longer.
  void grow() {
    std::vector<Beam> next;
    const auto best = candidates();
    for (std::size_t rank = 0; rank < best.size() && next.size() < width(); ++rank) {
      const auto& [from, token, logprob, sum] = best[rank];
      Beam beam{.place = beams_[from].place, .text = beams_[from].text, .sum = sum};
      beam.text.tokens.push_back(token);
      beam.text.logprobs.push_back(logprob);
      if (token != options_.end_of_text) {
        next.push_back(std::move(beam));
      } else if (rank < width()) {
        beam.text.ended = true;
        end(std::move(beam.text), sum);
      }
    }
    beams_ = std::move(next);
    place();
  }

  // The first beam of each beginning stays in its place; the others get copies in places that nobody needs.
  void place() {
    std::vector<bool> taken(width());
    std::vector<Beam*> homeless;
    for (auto& beam : beams_) {
      auto&& is_taken = taken[static_cast<std::size_t>(beam.place)];
      if (is_taken) homeless.push_back(&beam);
      is_taken = true;
    }
    for (auto* beam : homeless) {
      const auto free = std::ranges::find(taken, false) - taken.begin();
      decoder_.copy(static_cast<int>(free), std::exchange(beam->place, static_cast<int>(free)));
      taken[static_cast<std::size_t>(free)] = true;
    }
  }

  void read() {
    std::vector<Decoder::Token> tokens;
    for (const auto& beam : beams_) tokens.push_back({beam.place, beam.text.tokens.back()});
    decoder_.extend(tokens);
  }

  double score(double sum, std::size_t length) const {
    if (length == 0) return 0;
    return sum / std::pow(static_cast<double>(length), options_.length_penalty);
  }

  void end(BeamText&& text, double sum) {
    text.score = score(sum, text.tokens.size());
    const auto at = std::ranges::find_if(ended_, [&](const BeamText& t) { return t.score < text.score; });
    ended_.insert(at, std::move(text));
    if (ended_.size() > width()) ended_.pop_back();
  }

  bool is_over(std::int64_t length) const {
    return ended_.size() == width() && !beams_.empty() &&
           ended_.back().score >= score(beams_.front().sum, static_cast<std::size_t>(length));
  }

  Decoder& decoder_;
  const BeamOptions& options_;
  std::vector<Beam> beams_;      // by their sums, the best first
  std::vector<BeamText> ended_;  // by their scores, the best first
};

}  // namespace

std::vector<BeamText> beam_search(Decoder& decoder, std::span<const std::int32_t> prompt,
                                  const BeamOptions& options, const std::function<bool()>& stop) {
  const auto length = std::ssize(prompt), block = std::int64_t{decoder.config().block_size};
  if (length > block) {
    fail_user(
        "beam search keeps the whole text, but the prompt has {} tokens and the model sees {}; shorten it",
        length, block);
  }
  if (options.max_tokens > block - length) {  // their sum may be beyond an int64
    fail_user(
        "beam search keeps the whole text: the prompt's {} tokens and {} more do not fit the model's {}; ask "
        "for {} tokens at most",
        length, options.max_tokens, block, block - length);
  }
  return BeamSearch(decoder, options).run(prompt, stop);
}

}  // namespace shoal
