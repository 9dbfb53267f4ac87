#include "cli/command.h"

#include <fmt/format.h>

namespace shoal::cli {

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      const Examples& examples) {
  auto* command = app.add_subcommand(name, what);
  std::string text = "Examples:";
  for (const auto& [line, meaning] : examples) text += fmt::format("\n  {}\n      {}", line, meaning);
  command->footer(text);
  return command;
}

void add_settings(CLI::App& command, std::vector<std::string>& settings) {
  command
      .add_option("settings", settings,
                  "Set keys of the config, e.g. optim.lr=1e-3 (`shoal config --explain` lists them)")
      ->option_text("[section.key=value ...]");
}

void add_config_options(CLI::App& command, ConfigOptions& options) {
  command.add_option("config", options.file, "The run's config, a TOML file")
      ->required()
      ->option_text("CONFIG.toml");
  add_settings(command, options.settings);
}

}  // namespace shoal::cli
