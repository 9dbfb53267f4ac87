// The words of the command line, prepared for CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace shoal::cli {

// Makes the options of a command, and of all commands below it, take a value such as "[a,b]" as it is: CLI11
// would take it for a list. Call it when all options are there.
void keep_brackets(CLI::App& app);
// A word as it was on the command line, or a text with such words.
std::string plain_text(std::string text);

// The command line's words after the program, in reverse, as CLI11 takes them. Turns `--section.key=value`
// into `section.key=value`, and `help COMMAND` into `COMMAND --help`; the values of options stay as they are.
std::vector<std::string> reversed_arguments(const CLI::App& app, std::vector<std::string> words);

}  // namespace shoal::cli
