#include "data/grammar.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/philox.h"

namespace shoal {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The first word of a text with its delimiter; empty when no delimiter ends it.
std::string_view first_word(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_letter);
  return end == text.end() ? std::string_view{}
                           : text.substr(0, static_cast<std::size_t>(end - text.begin()) + 1);
}

}  // namespace

int Grammar::add_rule(std::vector<Alternative> alternatives) {
  const int rule = add_rule();
  define(rule, std::move(alternatives));
  return rule;
}

int Grammar::add_uniform(const std::vector<std::string>& words, const std::string& ending) {
  std::vector<Alternative> alternatives;
  for (const auto& word : words) alternatives.push_back({1, {word + ending}});
  return add_rule(std::move(alternatives));
}

void Grammar::finish(int start) {
  start_ = start;
  for (auto& rule : rules_) {
    double total = 0;
    for (const auto& alternative : rule.alternatives) total += alternative.weight;
    double sum = 0;
    for (auto& alternative : rule.alternatives) {
      alternative.weight /= total;
      rule.cumulative.push_back(sum += alternative.weight);
    }
  }
  std::vector<char> visiting(rules_.size(), 0);
  for (std::size_t i = 0; i < rules_.size(); ++i) find_first_words(static_cast<int>(i), visiting);
  solve();
}

const std::map<std::string, int>& Grammar::find_first_words(int index, std::vector<char>& visiting) {
  auto& rule = rules_[index];
  if (!rule.first_words.empty()) return rule.first_words;
  if (rule.alternatives.empty()) fail("grammar: rule {} has no alternatives", index);
  if (visiting[index]) fail("grammar: rule {} can begin with itself", index);
  visiting[index] = 1;
  for (std::size_t i = 0; i < rule.alternatives.size(); ++i) {
    if (rule.alternatives[i].symbols.empty()) fail("grammar: an alternative of rule {} is empty", index);
    const auto& symbol = rule.alternatives[i].symbols.front();
    std::vector<std::string> words;
    if (symbol.rule >= 0) {
      for (const auto& [word, unused] : find_first_words(symbol.rule, visiting)) words.push_back(word);
    } else {
      words.emplace_back(first_word(symbol.text));
    }
    for (const auto& word : words) {
      if (word.empty()) fail("grammar: an alternative of rule {} does not begin with a whole word", index);
      if (!rule.first_words.emplace(word, static_cast<int>(i)).second) {
        fail("grammar: two alternatives of rule {} begin with \"{}\"", index, word);
      }
    }
  }
  visiting[index] = 0;
  return rule.first_words;
}

// With p the weight of an alternative, a rule's expected entropy and length are
//     H = sum of p (-log p + H of the rules in it),   L = sum of p (characters + L of the rules in it).
// The equations are iterated until nothing changes. That converges fast, since every loop is left with some
// probability.
void Grammar::solve() {
  std::vector<double> entropy(rules_.size(), 0), length(rules_.size(), 0);
  constexpr int kSweeps = 100'000;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double change = 0;
    for (std::size_t i = rules_.size(); i-- > 0;) {
      double h = 0, l = 0;
      for (const auto& [p, symbols] : rules_[i].alternatives) {
        h -= p * std::log(p);
        for (const auto& symbol : symbols) {
          h += symbol.rule < 0 ? 0 : p * entropy[symbol.rule];
          l += p * (symbol.rule < 0 ? static_cast<double>(symbol.text.size()) : length[symbol.rule]);
        }
      }
      change = std::max({change, std::abs(h - entropy[i]), std::abs(l - length[i])});
      entropy[i] = h;
      length[i] = l;
    }
    entropy_ = entropy[start_];
    length_ = length[start_];
    if (change <= 1e-14 * length_) return;
  }
  fail("grammar: a text has no finite expected length");
}

double Grammar::generate(std::uint64_t seed, std::uint64_t index, std::string& out) const {
  const auto key = philox_key(seed, PhiloxStream::corpus);
  PhiloxBlock counter{0, 0, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32)};
  double information = 0;
  std::vector<const GrammarSymbol*> stack;
  const GrammarSymbol start(start_);
  stack.push_back(&start);
  while (!stack.empty()) {
    const auto& symbol = *stack.back();
    stack.pop_back();
    if (symbol.rule < 0) {
      out += symbol.text;
      continue;
    }
    const auto& rule = rules_[symbol.rule];
    std::size_t chosen = 0;
    if (rule.alternatives.size() > 1) {
      const double u = to_unit(philox(key, counter));
      ++counter[0];
      const auto found = std::upper_bound(rule.cumulative.begin(), rule.cumulative.end() - 1, u);
      chosen = static_cast<std::size_t>(found - rule.cumulative.begin());
      information -= std::log(rule.alternatives[chosen].weight);
    }
    const auto& symbols = rule.alternatives[chosen].symbols;
    for (auto it = symbols.rbegin(); it != symbols.rend(); ++it) stack.push_back(&*it);
  }
  return information;
}

std::optional<double> Grammar::information(std::string_view text) const {
  double result = 0;
  const GrammarSymbol start(start_);
  std::vector<const GrammarSymbol*> stack;
  while (!text.empty() || !stack.empty()) {
    if (stack.empty()) stack.push_back(&start);
    const auto& symbol = *stack.back();
    stack.pop_back();
    if (symbol.rule < 0) {
      if (!text.starts_with(symbol.text)) return std::nullopt;
      text.remove_prefix(symbol.text.size());
      continue;
    }
    const auto& rule = rules_[symbol.rule];
    const auto found = rule.first_words.find(std::string(first_word(text)));
    if (found == rule.first_words.end()) return std::nullopt;
    const auto& [weight, symbols] = rule.alternatives[found->second];
    result -= std::log(weight);
    for (auto it = symbols.rbegin(); it != symbols.rend(); ++it) stack.push_back(&*it);
  }
  return result;
}

std::string Grammar::alphabet() const {
  std::set<char> seen;
  for (const auto& rule : rules_) {
    for (const auto& alternative : rule.alternatives) {
      for (const auto& symbol : alternative.symbols) seen.insert(symbol.text.begin(), symbol.text.end());
    }
  }
  return {seen.begin(), seen.end()};
}

}  // namespace shoal
