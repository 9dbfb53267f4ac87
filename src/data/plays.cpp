#include "data/plays.h"

#include <string>
#include <vector>

namespace shoal {
namespace {

using Words = std::vector<std::string>;

struct Person {
  std::string label, name, pronoun;  // as a heading, in speech, in stage directions
};

const std::vector<Person>& people() {
  static const std::vector<Person> list = {{"ANNA", "Anna", "She"},   {"BASIL", "Basil", "He"},
                                           {"CORA", "Cora", "She"},   {"DION", "Dion", "He"},
                                           {"EDITH", "Edith", "She"}, {"FELIX", "Felix", "He"}};
  return list;
}

// The kind of thing that a noun names decides its verbs.
struct Kind {
  Words singular, plural;  // nouns
  Words verbs;             // in the plural; the singular adds an s
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> list = {
      {{"king",  "queen", "cook",  "monk",   "poet",  "nun",  "judge", "bride", "clown", "duke",
        "nurse", "page",  "pilot", "tailor", "guest", "twin", "thief", "witch", "aunt",  "boy"},
       {"kings",  "queens", "cooks",  "monks",   "poets",  "nuns",  "judges",  "brides",  "clowns", "dukes",
        "nurses", "pages",  "pilots", "tailors", "guests", "twins", "thieves", "witches", "aunts",  "boys"},
       {"sing", "lie", "weep", "dance", "nod", "pray", "joke", "sigh", "read", "kneel", "bake", "wink"}},
      {{"fox",  "cat",  "goat", "owl",  "wolf", "mouse", "crow", "frog", "hen", "mule",
        "swan", "toad", "lamb", "bear", "duck", "pig",   "newt", "colt", "dog", "rat"},
       {"foxes", "cats",  "goats", "owls",  "wolves", "mice", "crows", "frogs", "hens", "mules",
        "swans", "toads", "lambs", "bears", "ducks",  "pigs", "newts", "colts", "dogs", "rats"},
       {"run", "doze", "hide", "hum", "leap", "limp", "growl", "drink", "hunt", "yawn", "feed", "jump"}},
      {{"cup",  "lamp",  "boat",  "clock", "drum",  "gate", "hat", "jar",   "kettle", "flute",
        "mask", "penny", "quill", "rope",  "wheel", "vase", "fan", "glove", "pot",    "map"},
       {"cups",  "lamps",   "boats",  "clocks", "drums",  "gates", "hats", "jars",   "kettles", "flutes",
        "masks", "pennies", "quills", "ropes",  "wheels", "vases", "fans", "gloves", "pots",    "maps"},
       {"fall", "spin", "shine", "break", "creak", "burn", "rot", "sink", "float", "rattle", "glow",
        "melt"}}};
  return list;
}

const std::vector<Words>& rhymes() {
  static const std::vector<Words> list = {
      {"moon", "spoon", "dune", "tune", "lagoon"},   {"night", "light", "knight", "kite", "height"},
      {"bay", "hay", "clay", "tray", "day"},         {"sea", "tree", "bee", "flea", "key"},
      {"ring", "spring", "string", "wing", "thing"}, {"rain", "lane", "crane", "train", "chain"},
      {"stone", "throne", "bone", "crone", "phone"}, {"door", "shore", "floor", "oar", "war"},
      {"bell", "well", "shell", "spell", "smell"},   {"bread", "bed", "sled", "shed", "thread"},
      {"rose", "nose", "toes", "hose", "snows"},     {"snake", "lake", "cake", "rake", "steak"},
      {"wine", "pine", "mine", "vine", "line"},      {"ghost", "coast", "toast", "post", "host"}};
  return list;
}

class Playwright {
 public:
  std::unique_ptr<const Grammar> write() {
    clause_ = clause();
    for (const auto& words : rhymes()) {
      for (const auto& first : words) second_rhyme_.push_back(rhyme_with(words, first));
    }
    direction_ = grammar_->add_uniform(
        {"bows.)\n", "laughs.)\n", "sneezes.)\n", "kneels.)\n", "turns.)\n", "weeps.)\n"});
    opening_ = grammar_->add_uniform({"Say, ", "Lo, ", "Oh, ", "Ah, ", "Hey, ", "Now ", "So ", "Hush, ",
                                      "Look, ", "Once ", "Alas, ", "We hear "});

    const auto& all = people();
    std::vector<Alternative> entrances;
    for (const auto& first : all) {
      std::vector<Alternative> partners;
      for (const auto& second : all) {
        if (&first == &second) continue;
        partners.push_back({1, {second.label + ".\n\n", dialogue(first, second)}});
      }
      entrances.push_back({1, {first.label + " ", "and ", grammar_->add_rule(std::move(partners))}});
    }
    const int cast = grammar_->add_rule(std::move(entrances));
    const int place = grammar_->add_uniform(
        {"garden", "kitchen", "forest", "castle", "harbour", "market", "tower", "tavern"}, ", ");
    const int time = grammar_->add_uniform({"dawn", "noon", "dusk", "midnight"}, ".\n");
    grammar_->finish(grammar_->add_rule({{1, {"A ", place, time, "Enter ", cast}}}));
    return std::move(grammar_);
  }

 private:
  // the|a|... [adjective] noun verb [adverb] preposition the|a|... [adjective], up to the rhyme
  int clause() {
    const int adjective = grammar_->add_uniform(
        {"old",  "sly",  "red",  "wet",  "sad",  "big",  "shy",   "mad",   "wee",  "dim",
         "odd",  "raw",  "cold", "bold", "pale", "tall", "vain",  "gold",  "blue", "kind",
         "lost", "grim", "torn", "ugly", "tame", "wild", "thin",  "rude",  "new",  "dry",
         "hot",  "fat",  "lean", "loud", "mild", "neat", "plain", "proud", "rich", "wise"},
        " ");
    const int one = predicate(true, adjective), many = predicate(false, adjective);
    const int subject = grammar_->add_rule({{4, {"the ", one}},
                                            {2, {"my ", one}},
                                            {2, {"this ", one}},
                                            {2, {"no ", one}},
                                            {2, {"her ", one}},
                                            {2, {"two ", many}},
                                            {1, {"those ", many}},
                                            {1, {"all ", many}},
                                            {1, {"most ", many}}});
    const int adverb =
        grammar_->add_uniform({"softly", "twice", "badly", "alone", "again", "slowly", "too", "still"}, " ");
    const Words prepositions = {"by", "near", "past", "like", "with", "for", "on", "over", "under", "behind"};
    std::vector<Alternative> ways;
    for (const auto& word : prepositions) ways.push_back({0.07, {word + " "}});
    ways.push_back({0.3, {adverb, grammar_->add_uniform(prepositions, " ")}});
    const int way = grammar_->add_rule(std::move(ways));
    const int article =
        grammar_->add_rule({{3, {"the "}}, {2, {"my "}}, {1, {"your "}}, {1, {"his "}}, {1, {"some "}}});
    described_ = adjective;
    return grammar_->add_rule({{1, {subject, way, article}}});
  }

  // [adjective] noun verb
  int predicate(bool singular, int adjective) {
    std::vector<Alternative> nouns;
    for (const auto& kind : kinds()) {
      const int verb = grammar_->add_uniform(kind.verbs, singular ? "s " : " ");
      for (const auto& noun : singular ? kind.singular : kind.plural)
        nouns.push_back({1, {noun + " ", verb}});
    }
    const int noun = grammar_->add_rule(std::move(nouns));
    return grammar_->add_rule({{2, {noun}}, {3, {adjective, noun}}});
  }

  // The rest of a couplet: [adjective] and another word that rhymes with `first`.
  int rhyme_with(const Words& words, const std::string& first) {
    std::vector<Alternative> others;
    for (const auto& word : words) {
      if (word != first) others.push_back({1, {word + ".\n"}});
    }
    const int rhyme = grammar_->add_rule(std::move(others));
    return grammar_->add_rule({{2, {rhyme}}, {3, {described_, rhyme}}});
  }

  // A speech of `first`, and the rest of the play.
  int dialogue(const Person& first, const Person& second) {
    const int speech_of_first = grammar_->add_rule(), speech_of_second = grammar_->add_rule();
    define_speech(speech_of_first, first, second, speech_of_second);
    define_speech(speech_of_second, second, first, speech_of_first);
    return speech_of_first;
  }

  void define_speech(int rule, const Person& speaker, const Person& other, int next) {
    const int after = grammar_->add_rule(
        {{0.15, {"Exeunt.\n\n"}}, {0.7, {next}}, {0.15, {"(" + speaker.pronoun + " ", direction_, next}}});
    const int link = grammar_->add_rule({{2, {"and "}},
                                         {1, {"but "}},
                                         {1, {"yet "}},
                                         {1, {"while "}},
                                         {2, {"dear " + other.name + ", "}},
                                         {2, {"sweet " + other.name + ", "}},
                                         {1, {other.name + ", "}}});
    // The rhyme word determines the rest of the couplet, so each word has an alternative with its own rest.
    std::vector<Alternative> ends;
    std::size_t index = 0;
    for (const auto& words : rhymes()) {
      for (const auto& word : words)
        ends.push_back({1, {word + ",\n", link, clause_, second_rhyme_[index++], after}});
    }
    const int end = grammar_->add_rule(std::move(ends));
    const int line_end = grammar_->add_rule({{2, {end}}, {3, {described_, end}}});
    grammar_->define(rule, {{1, {speaker.label + ". ", opening_, clause_, line_end}}});
  }

  std::unique_ptr<Grammar> grammar_ = std::make_unique<Grammar>();
  int clause_ = -1, direction_ = -1, opening_ = -1, described_ = -1;
  std::vector<int> second_rhyme_;  // by the first rhyme word, numbered through
};

}  // namespace

std::unique_ptr<const Grammar> make_play_grammar() { return Playwright().write(); }

}  // namespace shoal
