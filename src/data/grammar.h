// A probabilistic grammar whose texts can be parsed back into its choices, so that its entropy is known
// exactly.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// A symbol on the right side of a rule: text, or the index of another rule.
struct GrammarSymbol {
  GrammarSymbol(std::string literal) : text(std::move(literal)) {}
  GrammarSymbol(const char* literal) : text(literal) {}
  GrammarSymbol(int index) : rule(index) {}

  std::string text;
  int rule = -1;
};

struct Alternative {
  double weight;
  std::vector<GrammarSymbol> symbols;
};

// Build with add_rule / define, then call finish(start) once; after that it is constant and safe to share.
class Grammar {
 public:
  int add_rule() { return rules_.emplace_back(), static_cast<int>(rules_.size()) - 1; }
  void define(int rule, std::vector<Alternative> alternatives) {
    rules_[rule].alternatives = std::move(alternatives);
  }
  int add_rule(std::vector<Alternative> alternatives);
  // One alternative per word, with equal weights, each followed by `ending`.
  int add_uniform(const std::vector<std::string>& words, const std::string& ending = "");

  // Normalises the weights and checks that the grammar is LL(1) over words: a word is a run of characters up
  // to and including the first that is no letter, so no word is the prefix of another, and in every rule no
  // two alternatives can begin with the same word. Hence a text determines the choices that produced it, and
  //     entropy of a text = sum over choices of (expected number of times made) * (conditional entropy).
  // Throws Error (a mistake in the grammar) when the grammar is not LL(1).
  void finish(int start);

  double text_entropy() const { return entropy_; }  // of one text derived from the start, in nats
  double text_length() const { return length_; }    // expected characters
  // Nats per character of a sequence of texts: the lowest loss that a model can expect (renewal theorem).
  double entropy_rate() const { return entropy_ / length_; }

  // Appends text number `index` of a seed to `out`, and returns its information -log p in nats. Thread-safe.
  double generate(std::uint64_t seed, std::uint64_t index, std::string& out) const;

  // -log p of a sequence of whole texts, in nats; nullopt when the grammar cannot produce it.
  std::optional<double> information(std::string_view text) const;

  std::string alphabet() const;  // the characters that occur, sorted, without duplicates

 private:
  struct Rule {
    std::vector<Alternative> alternatives;
    std::vector<double> cumulative;          // of the weights
    std::map<std::string, int> first_words;  // -> alternative
  };

  const std::map<std::string, int>& find_first_words(int rule, std::vector<char>& visiting);
  void solve();

  std::vector<Rule> rules_;
  int start_ = -1;
  double entropy_ = 0, length_ = 0;
};

}  // namespace shoal
