#include "cli/command_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace shoal::cli {
namespace {

constexpr const char* kExamples = "Examples:";

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  return parts;
}

// The words of choices_text in an option's type: "TEXT:{val,train,test}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const auto type = option.get_type_name();
  const auto begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return split(type.substr(begin + 1, end - begin - 1), ",");
}

OptionRow row_of(const CLI::Option& option) {
  OptionRow row;
  for (const auto& name : option.get_snames()) row.names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) row.names.push_back("--" + name);
  row.value = row.names.empty() ? argument_form(option) : value_form(option);
  row.meaning = meaning_text(option);
  row.choices = choices_of(option);
  row.repeated = option.get_items_expected_max() > 1;
  return row;
}

std::string usage_of(const CLI::App& command, const CommandTable& table) {
  auto usage = full_name(command) + " [OPTIONS]";
  for (const auto& argument : table.arguments) usage += " " + argument.value;
  return usage + (table.commands.empty() ? "" : " [COMMAND]");
}

}  // namespace

CommandTable command_table(const CLI::App& command) {
  CommandTable table;
  table.name = command.get_name();
  table.meaning = command.get_description();
  for (const auto* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    (option->nonpositional() ? table.options : table.arguments).push_back(row_of(*option));
  }
  for (const auto* below : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (!below->get_group().empty()) table.commands.push_back(command_table(*below));
  }
  table.usage = usage_of(command, table);
  table.footer = command.get_footer();
  return table;
}

const CommandTable* find_command(const CommandTable& above, const std::string& name) {
  const auto found = std::ranges::find(above.commands, name, &CommandTable::name);
  return found == above.commands.end() ? nullptr : &*found;
}

const OptionRow* find_option(const CommandTable& command, const std::string& name) {
  const auto found = std::ranges::find_if(
      command.options, [&](const OptionRow& option) { return std::ranges::count(option.names, name) > 0; });
  return found == command.options.end() ? nullptr : &*found;
}

std::string full_name(const CLI::App& command) {
  return command.get_parent() ? full_name(*command.get_parent()) + " " + command.get_name()
                              : command.get_name();
}

std::string argument_form(const CLI::Option& argument) {
  return argument.get_option_text().empty() ? argument.get_name(true) : argument.get_option_text();
}

std::string value_form(const CLI::Option& option) {
  if (!option.get_option_text().empty()) return option.get_option_text();
  const auto type = option.get_type_name();
  if (type.empty()) return "";
  if (type.starts_with("INT") || type.starts_with("UINT")) return "N";
  return type.starts_with("FLOAT") ? "X" : "TEXT";
}

std::string meaning_text(const CLI::Option& option) {
  auto text = option.get_description();
  if (!option.get_default_str().empty()) text += fmt::format(" (default {})", option.get_default_str());
  if (option.get_required() && option.nonpositional()) text += " (required)";
  return text;
}

std::string choices_text(const std::vector<std::string>& words) {
  return fmt::format("{{{}}}", fmt::join(words, ","));
}

Footer read_footer(const std::string& footer) {
  Footer result;
  for (const auto& paragraph : split(footer, "\n\n")) {
    if (!paragraph.starts_with(kExamples)) {
      if (!paragraph.empty()) result.notes.push_back(paragraph);
      continue;
    }
    for (const auto& line : split(paragraph, "\n")) {
      if (line == kExamples) continue;
      const auto text = line.substr(line.find_first_not_of(' '));
      if (line.starts_with("    ")) {
        result.examples.back().second = text;
      } else {
        result.examples.emplace_back(text, "");
      }
    }
  }
  return result;
}

}  // namespace shoal::cli
