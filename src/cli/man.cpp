// shoal man: pages of the manual, from the tables that --help prints.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <system_error>

#include "cli/command.h"
#include "cli/command_table.h"
#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "core/version.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

struct ManOptions {
  std::string command, out;
};

// Text in which roff takes nothing for its own. A hyphen stays the one that can be typed.
std::string roff(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    line_begins = c == '\n';
    switch (c) {
      case '\\':
        result += "\\e";
        break;
      case '-':
        result += "\\-";
        break;
      case '~':
        result += "\\(ti";
        break;
      case '^':
        result += "\\(ha";
        break;
      case '`':
        result += "\\(ga";
        break;
      case '\'':
        result += "\\(aq";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string bold(std::string_view text) { return "\\fB" + roff(text) + "\\fR"; }
std::string italic(std::string_view text) { return "\\fI" + roff(text) + "\\fR"; }

std::string section(std::string_view title) { return fmt::format(".SH {}\n", title); }

// A term and its meaning, indented.
std::string entry(const std::string& term, const std::string& meaning) {
  return fmt::format(".TP\n{}\n{}\n", term, meaning.empty() ? "\\&" : roff(meaning));
}

std::string rows(const CommandTable& command) {
  std::string text;
  for (const auto& argument : command.arguments) text += entry(italic(argument.value), argument.meaning);
  for (const auto& option : command.options) {
    std::string term;
    for (const auto& name : option.names) term += (term.empty() ? "" : ", ") + bold(name);
    if (!option.value.empty()) term += " " + italic(option.value);
    text += entry(term, option.meaning);
  }
  return text;
}

std::string notes(const Footer& footer) {
  std::string text;
  for (const auto& note : footer.notes) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(note));
  return text;
}

std::string examples(const Footer& footer) {
  std::string text;
  for (const auto& [line, meaning] : footer.examples)
    text += fmt::format("{}{}\n.RS 4\n{}\n.RE\n", text.empty() ? "" : ".PP\n", bold(line), roff(meaning));
  return text;
}

std::string page_name(const std::string& command) {
  return command == "shoal" ? command : "shoal-" + command;
}

// The commands below one, each with its own arguments and options.
std::string actions(const CommandTable& command) {
  std::string text = section("COMMANDS");
  for (const auto& action : command.commands) {
    text += fmt::format(".SS {}\n{}\n", roff(action.usage), roff(action.meaning)) + rows(action);
    const auto footer = read_footer(action.footer);
    text += notes(footer);
    if (!footer.examples.empty()) text += ".PP\n" + examples(footer);
  }
  return text;
}

std::string see_also(const CommandTable& program, const CommandTable& command) {
  std::string text;
  const auto add = [&](const std::string& page) {
    text += fmt::format("{}{}(1)", text.empty() ? "" : ",\n", bold(page));
  };
  if (command.name != program.name) add(program.name);
  if (command.name == program.name) {
    for (const auto& other : program.commands) add(page_name(other.name));
  } else if (command.name != "config") {
    add(page_name("config"));
  }
  return section("SEE ALSO") + text + "\n";
}

// The page of the program, or of one of its commands.
std::string page(const CommandTable& program, const CommandTable& command) {
  const bool whole = command.name == program.name;
  const auto name = page_name(command.name);
  auto text = fmt::format(".TH {} 1 \"\" \"shoal {}\" \"Shoal\"\n.nh\n.ad l\n", roff(name), kVersion);
  text += section("NAME") +
          fmt::format("{} \\- {}\n", roff(name),
                      roff(whole ? "train GPT-2 on one core, one machine or a cluster" : command.meaning));
  text += section("SYNOPSIS") + bold(command.usage) + "\n";
  if (whole) {
    text += section("DESCRIPTION") + roff(command.meaning) + "\n" + section("COMMANDS");
    for (const auto& below : command.commands)
      text += entry(fmt::format("{}(1)", bold(page_name(below.name))), below.meaning);
  } else if (!command.commands.empty()) {
    text += actions(command);
  }
  const auto footer = read_footer(command.footer);
  text += section("OPTIONS") + rows(command) + notes(footer);
  if (!footer.examples.empty()) text += section("EXAMPLES") + examples(footer);
  text += section("EXIT STATUS") +
          entry("0", "Success, or stopped by SIGINT, SIGTERM or SIGUSR1 with everything saved.") +
          entry("1", "The command failed; of shoal checkpoint compare: the checkpoints differ.") +
          entry("2", "An error that the user can correct: a wrong key, option or file, a full disk.") +
          entry("128+N", "Stopped by signal N with nothing to save, or by a second signal.");
  return text + see_also(program, command);
}

void write_pages(const CommandTable& program, const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_user("cannot create {}: {}", folder.string(), error.message());
  const auto write = [&](const CommandTable& command) {
    write_text(folder / (page_name(command.name) + ".1"), page(program, command));
  };
  write(program);
  for (const auto& command : program.commands) write(command);
}

void print_page(const CommandTable& program, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& command : program.commands) {
    if (command.name == name) return fmt::print("{}", page(program, command));
    names.push_back(command.name);
  }
  if (name.empty() || name == program.name) return fmt::print("{}", page(program, program));
  const auto near = nearest(name, names);
  fail_user("there is no command '{}'; {}", name,
            near.empty() ? fmt::format("known: {}", fmt::join(names, ", "))
                         : fmt::format("did you mean {}?", near));
}

}  // namespace

void add_man(CLI::App& app) {
  auto options = std::make_shared<ManOptions>();
  auto* command =
      add_command(app, "man", "Print the manual page of shoal or of a command, or write all pages",
                  {{"shoal man train | man -l -", "the page of shoal train"},
                   {"shoal man --out ~/.local/share/man/man1", "all pages, where man finds them"}});
  auto* name = command->add_option("command", options->command, "The command; without it, shoal")
                   ->option_text("[COMMAND]");
  command->add_option("--out", options->out, "Write all pages into this folder")
      ->option_text("DIR")
      ->excludes(name);
  command->callback([options, &app] {
    const auto program = command_table(app);
    if (options->out.empty()) return print_page(program, options->command);
    write_pages(program, options->out);
  });
}

}  // namespace shoal::cli
