#include "data/grammar.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/error.h"
#include "data/plays.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

// S -> "a " N "." (3/4) | "two " N "s!" (1/4);   N -> "cat" ... as whole words
TEST(Grammar, EntropyOfAHandComputedGrammar) {
  Grammar grammar;
  const int noun = grammar.add_rule({{1, {"cat "}}, {1, {"horse "}}});
  const int start = grammar.add_rule({{3, {"a ", noun, "runs.\n"}}, {1, {"two ", noun, "run!\n"}}});
  grammar.finish(start);
  // Two choices: (3/4, 1/4), and an even one. Characters: 2 + 6 or 4 + 5, and "cat " or "horse ".
  const double entropy = -0.75 * std::log(0.75) - 0.25 * std::log(0.25) + std::log(2.0);
  const double length = 0.75 * (2 + 6) + 0.25 * (4 + 5) + 0.5 * 4 + 0.5 * 6;
  EXPECT_NEAR(grammar.text_entropy(), entropy, 1e-14);
  EXPECT_NEAR(grammar.text_length(), length, 1e-13);
  EXPECT_NEAR(grammar.entropy_rate(), entropy / length, 1e-14);
  EXPECT_NEAR(grammar.information("a horse runs.\n").value(), -std::log(0.75 * 0.5), 1e-14);
  EXPECT_NEAR(grammar.information("two cat run!\na cat runs.\n").value(), -std::log(0.25 * 0.5 * 0.75 * 0.5),
              1e-14);
  EXPECT_EQ(grammar.information("two cat runs.\n"), std::nullopt);
  EXPECT_EQ(grammar.information("a cat runs.\na c"), std::nullopt);
  EXPECT_EQ(grammar.alphabet(), "\n !.acehnorstuw");
}

TEST(Grammar, LoopsCountAsOftenAsTheyAreTaken) {
  // "x " repeated with probability 3/4, then "end.": a geometric number of repetitions, 3 on average.
  Grammar grammar;
  const int loop = grammar.add_rule();
  grammar.define(loop, {{3, {"x ", loop}}, {1, {"end."}}});
  grammar.finish(loop);
  const double choice = -0.75 * std::log(0.75) - 0.25 * std::log(0.25);
  EXPECT_NEAR(grammar.text_length(), 3 * 2 + 4, 1e-11);
  EXPECT_NEAR(grammar.text_entropy(), 4 * choice, 1e-11);  // three times on, once out
}

TEST(Grammar, RefusesAmbiguity) {
  const auto error_of = [](std::vector<Alternative> alternatives) -> std::string {
    Grammar grammar;
    const int rule = grammar.add_rule(std::move(alternatives));
    try {
      grammar.finish(rule);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of({{1, {"the cat "}}, {1, {"the dog "}}}), HasSubstr("begin with \"the \""));
  // A word that may be the prefix of another cannot be parsed.
  EXPECT_THAT(error_of({{1, {"cat"}}, {1, {"cats"}}}), HasSubstr("whole word"));
  EXPECT_THAT(error_of({{1, {0}}, {1, {"a "}}}), HasSubstr("begin with itself"));
  EXPECT_THAT(error_of({{1, {"a ", 0, 0}}, {1, {"b "}}}), HasSubstr("no finite"));
  EXPECT_EQ(error_of({{1, {"cat "}}, {1, {"cats "}}}), "");
}

TEST(Plays, RealisedEntropyMeetsTheAnalyticRate) {
  const auto grammar = make_play_grammar();
  const double rate = grammar->entropy_rate();
  EXPECT_GT(rate, 0.4);
  EXPECT_LT(rate, 1.2);
  // By the renewal theorem, the measured rate minus the analytic one is sum(I - rate L) / sum(L) over
  // independent plays. The terms have mean 0, so the standard error is sqrt(sum of their squares) / sum(L).
  double information = 0, squares = 0;
  std::string text;
  for (std::uint64_t i = 0; text.size() < 1'000'000; ++i) {
    const auto before = text.size();
    const double nats = grammar->generate(1, i, text);
    information += nats;
    squares += std::pow(nats - rate * static_cast<double>(text.size() - before), 2);
  }
  const auto characters = static_cast<double>(text.size());
  EXPECT_NEAR(information / characters, rate, 4 * std::sqrt(squares) / characters);
  // Parsing the text gives exactly the probability with which it was generated.
  EXPECT_NEAR(grammar->information(text).value(), information, 1e-9 * information);
}

TEST(Plays, AreAddressedBySeedAndIndex) {
  const auto grammar = make_play_grammar(), again = make_play_grammar();
  std::string a, b, other_index, other_seed;
  grammar->generate(1, 5, a);
  again->generate(1, 5, b);
  grammar->generate(1, 6, other_index);
  grammar->generate(2, 5, other_seed);
  EXPECT_EQ(a, b);
  EXPECT_NE(a, other_index);
  EXPECT_NE(a, other_seed);
}

TEST(Plays, AreWellMade) {
  const auto grammar = make_play_grammar();
  std::string text;
  grammar->generate(3, 0, text);
  EXPECT_TRUE(text.starts_with("A ")) << text;
  EXPECT_THAT(text, HasSubstr("\nEnter "));
  EXPECT_TRUE(text.ends_with("Exeunt.\n\n")) << text;
  EXPECT_EQ(grammar->information(text.substr(1)), std::nullopt);
  EXPECT_EQ(
      grammar->alphabet().find_first_not_of("\n (),.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
      std::string::npos);
}

}  // namespace
}  // namespace shoal
