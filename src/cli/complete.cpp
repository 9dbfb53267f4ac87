#include "cli/complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "config/schema.h"

namespace shoal::cli {
namespace {

constexpr std::string_view kSetting = "section.key=value";
constexpr std::string_view kCommandAfter = "-- ";  // an argument that is a command line of its own

bool mentions(const OptionRow& argument, std::string_view word) {
  return argument.value.find(word) != std::string::npos;
}

// Whether a command line of its own follows the options and "--".
bool takes_command(const CommandTable& command) {
  return !command.arguments.empty() && command.arguments.front().value.starts_with(kCommandAfter);
}

// Collects the candidates that begin with the word.
class Matches {
 public:
  explicit Matches(std::string word) : word_(std::move(word)) {}

  void add(const std::string& candidate, const std::string& meaning = "") {
    if (candidate.starts_with(word_)) completion_.candidates.push_back({candidate, meaning});
  }
  void allow_files() { completion_.files = true; }
  const std::string& word() const { return word_; }
  Completion take() { return std::move(completion_); }

 private:
  std::string word_;
  Completion completion_;
};

void add_commands(const CommandTable& command, Matches& matches) {
  for (const auto& below : command.commands) matches.add(below.name, below.meaning);
}

void add_options(const CommandTable& command, Matches& matches) {
  for (const auto& option : command.options) {
    for (const auto& name : option.names) matches.add(name, option.meaning);
  }
}

// Values of an option or argument; `before` is the part of the word in front: "--format=".
void add_values(const OptionRow& option, Matches& matches, const std::string& before = "") {
  for (const auto& choice : option.choices) matches.add(before + choice);
  if (!option.choices.empty()) return;
  static const std::set<std::string, std::less<>> kNoFiles{"N",    "X",    "M",    "L",    "MIB",
                                                           "SIZE", "TEXT", "NAME", "HOST", "KEY"};
  const auto& form = option.value;  // "FILE.svg", "N | all", "NAME|FILE.toml"
  for (std::size_t begin = 0; begin < form.size();) {
    const auto end = std::min(form.find('|', begin), form.size());
    auto word = std::string_view(form).substr(begin, end - begin);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    if (form.find('|') != form.npos &&
        std::ranges::all_of(word, [](char c) { return c >= 'a' && c <= 'z'; })) {
      matches.add(before + std::string(word));
    } else if (!kNoFiles.contains(word)) {
      matches.allow_files();
    }
    begin = end + 1;
  }
}

void add_setting_values(const Field& field, Matches& matches) {
  const auto before = field.name() + "=";
  if (field.type() == "true or false") {
    for (const char* value : {"true", "false"}) matches.add(before + value);
  }
  for (const auto choice : field.choices) {
    const auto open = choice.rfind(':');  // "file:ROUNDS.toml" stands for any text behind the colon
    matches.add(before + std::string(open == choice.npos ? choice : choice.substr(0, open + 1)));
  }
  if (field.type() == "text" && field.choices.empty()) matches.allow_files();
}

// Settings in three steps: "optim.", "optim.lr=", the value.
void add_settings_in_steps(Matches& matches) {
  const auto& word = matches.word();
  if (const auto equals = word.find('='); equals != std::string::npos) {
    if (const auto* field = find_field(word.substr(0, equals))) add_setting_values(*field, matches);
  } else if (word.find('.') == std::string::npos) {
    for (const auto& section : config_sections())
      matches.add(section + ".", fmt::format("keys of [{}]", section));
  } else {
    for (const auto& field : config_fields()) matches.add(field.name() + "=", std::string(field.doc));
  }
}

void add_sections_and_keys(Matches& matches) {
  for (const auto& section : config_sections()) matches.add(section, fmt::format("keys of [{}]", section));
  for (const auto& field : config_fields()) matches.add(field.name(), std::string(field.doc));
}

// The command that the words before the last one lead to, and the place in it where the last one stands.
struct Place {
  const CommandTable* command = nullptr;
  std::size_t arguments = 0;          // that have been given
  const OptionRow* option = nullptr;  // whose value comes next
  bool help = false;                  // only commands follow
};

Place find_place(const CommandTable& program, const std::vector<std::string>& words) {
  Place place{&program};
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const auto& word = words[i];
    if (word == "--") {  // as in shoal launch -n 4 -- train CONFIG.toml
      if (takes_command(*place.command)) place = Place{&program};
    } else if (word.starts_with('-') && word.size() > 1) {
      const auto* option = find_option(*place.command, word);
      place.option = option && !option->value.empty() ? option : nullptr;
    } else if (place.option) {
      if (!place.option->repeated) place.option = nullptr;
    } else if (const auto* below = find_command(*place.command, word)) {
      place.command = below;
    } else if (i == 0 && word == "help") {
      place.help = true;
    } else {
      ++place.arguments;
    }
  }
  return place;
}

void add_argument(const Place& place, Matches& matches) {
  const auto& arguments = place.command->arguments;
  if (arguments.empty() || place.help) return;
  const auto at = std::min(place.arguments, arguments.size() - 1);
  const auto& argument = arguments[at];
  if (place.arguments > at && !argument.repeated) return;
  if (takes_command(*place.command)) {
    matches.add("--", argument.meaning);
  } else if (mentions(argument, kSetting)) {
    if (mentions(argument, "KEY")) add_sections_and_keys(matches);
    add_settings_in_steps(matches);
  } else {
    add_values(argument, matches);
  }
}

}  // namespace

Completion complete(const CommandTable& program, const std::vector<std::string>& words) {
  Matches matches(words.empty() ? "" : words.back());
  const auto place = find_place(program, words);
  const auto& word = matches.word();
  const auto equals = word.find('=');
  if (word.starts_with("--") && equals != std::string::npos) {
    const auto* option = find_option(*place.command, word.substr(0, equals));
    if (option) add_values(*option, matches, word.substr(0, equals + 1));
  } else if (word.starts_with('-')) {
    add_options(*place.command, matches);
    if (takes_command(*place.command)) matches.add("--", place.command->arguments.front().meaning);
  } else if (place.option) {
    add_values(*place.option, matches);
  } else {
    const bool of_man = place.command == find_command(program, "man");
    add_commands(of_man && place.arguments == 0 ? program : *place.command, matches);
    if (of_man) return matches.take();
    add_argument(place, matches);
  }
  return matches.take();
}

std::string completion_lines(const Completion& completion) {
  std::string lines;
  for (const auto& [word, meaning] : completion.candidates) lines += fmt::format("{}\t{}\n", word, meaning);
  return lines + (completion.files ? ":files\n" : "");
}

}  // namespace shoal::cli
