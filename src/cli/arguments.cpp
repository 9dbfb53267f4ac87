#include "cli/arguments.h"

#include <algorithm>
#include <utility>

#include "cli/command_table.h"

namespace shoal::cli {
namespace {

// Ends a word whose last character is a bracket. No word of a command line can contain it.
constexpr char kEnd = '\0';

bool is_setting(const std::string& word) {
  const auto equals = word.find('=');
  return word.starts_with("--") && equals != std::string::npos && word.find('.') < equals;
}

// Removes the dashes before settings.
void rewrite_settings(const CommandTable& program, std::vector<std::string>& words) {
  const CommandTable* command = &program;
  bool is_value = false;  // of the option before it
  for (auto& word : words) {
    if (word == "--") return;
    if (std::exchange(is_value, false)) continue;
    if (is_setting(word)) {
      word.erase(0, 2);
    } else if (const auto* option = find_option(*command, word)) {
      is_value = !option->value.empty();
    } else if (const auto* below = find_command(*command, word)) {
      command = below;
    }
  }
}

}  // namespace

std::string plain_text(std::string text) {
  std::erase(text, kEnd);
  return text;
}

void keep_brackets(CLI::App& app) {
  const auto restore = [](std::string& word) {
    word = plain_text(std::move(word));
    return std::string();
  };
  for (auto* option : app.get_options()) {
    if (option->get_items_expected_max() > 0) option->transform(CLI::Validator(restore, ""));
  }
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; })) keep_brackets(*command);
}

std::vector<std::string> reversed_arguments(const CLI::App& app, std::vector<std::string> words) {
  if (!words.empty() && words.front() == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  rewrite_settings(command_table(app), words);
  for (auto& word : words) {
    if (word.ends_with(']')) word += kEnd;
  }
  std::ranges::reverse(words);
  return words;
}

}  // namespace shoal::cli
