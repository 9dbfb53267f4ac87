// The command line as plain tables, from CLI11's: the help, the manual pages and the completion of shells
// print the same.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace shoal::cli {

// An option of a command, or one of its arguments.
struct OptionRow {
  std::vector<std::string> names;    // "-o", "--output"; none for an argument
  std::string value;                 // "FILE.svg"; "" for a flag
  std::string meaning;               // with its default
  std::vector<std::string> choices;  // the words that it takes; none: any text
  bool repeated = false;             // it takes several values
};

struct CommandTable {
  std::string name, meaning;
  std::string usage;  // "shoal train [OPTIONS] CONFIG.toml [section.key=value ...]"
  std::vector<OptionRow> arguments, options;
  std::vector<CommandTable> commands;  // without hidden ones
  std::string footer;                  // examples and notes, below the help
};

// The table of a command and of all commands below it.
CommandTable command_table(const CLI::App& command);

// The command below `above`, or the command's option, of this name ("--output"); nullptr if there is none.
const CommandTable* find_command(const CommandTable& above, const std::string& name);
const OptionRow* find_option(const CommandTable& command, const std::string& name);

// The command's names from the program on: "shoal checkpoint list".
std::string full_name(const CLI::App& command);

// Parts of a row of the help. `value_form` is empty for a flag; `meaning_text` has the default.
std::string argument_form(const CLI::Option& argument);
std::string value_form(const CLI::Option& option);
std::string meaning_text(const CLI::Option& option);

// The description of a validator that allows these words, which command_table reads back: "{val,train,test}".
std::string choices_text(const std::vector<std::string>& words);

// A line of the footer "Examples:" and its meaning, which may be empty.
using Example = std::pair<std::string, std::string>;
// The paragraphs of a footer: examples, and texts whose lines stay as they are.
struct Footer {
  std::vector<Example> examples;
  std::vector<std::string> notes;
};
Footer read_footer(const std::string& footer);

}  // namespace shoal::cli
