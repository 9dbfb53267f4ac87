#include "cli/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "cli/command_table.h"
#include "core/error.h"
#include "core/terminal.h"
#include "core/text.h"
#include "core/wrap.h"
#include "launch/ranks.h"

namespace shoal::cli {
namespace {

// The format of the help: arguments shown by their text ("CONFIG.toml"), with defaults, wrapped at the
// terminal's width or 100 columns.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(kColumn);
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return "\n" + Formatter::make_usage(app, name);
  }
  std::string make_option_usage(const CLI::Option* option) const override { return argument_form(*option); }
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    return positional ? argument_form(*option) : Formatter::make_option_name(option, false);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const auto value = option->nonpositional() ? value_form(*option) : "";
    return value.empty() ? "" : " " + value;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(meaning_text(*option), kColumn);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_display_name(true),
                             wrapped(command->get_description(), kColumn), kColumn);
    return out.str();
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0) + "\n";
  }

 private:
  static constexpr std::size_t kWidth = 100, kLeast = 60, kColumn = 30;

  static std::string wrapped(const std::string& text, std::size_t indent) {
    const auto columns = static_cast<std::size_t>(terminal_columns(STDOUT_FILENO));
    auto lines = wrap(text, "", (columns > 0 ? std::clamp(columns, kLeast, kWidth) : kWidth) - indent);
    lines.pop_back();
    return lines;
  }
};

}  // namespace

void use_help_formatter(CLI::App& app) { app.formatter(std::make_shared<HelpFormatter>()); }

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      const Examples& examples) {
  auto* command = app.add_subcommand(name, what)->group("Commands");
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

CLI::Option* add_ranks(CLI::App& command, int& ranks) {
  const auto check = [](std::string& text) {
    if (text == "all") {
      text = std::to_string(kAllRanks);
      return std::string();
    }
    auto error = takes_integer(1)(text);
    return error.empty() ? error : error + ", or all";
  };
  return command
      .add_option("--ranks", ranks,
                  "Ranks, as threads of this process; all: one per core, with train.backend=cuda one per "
                  "GPU. Not for "
                  "mpirun and srun, which start the ranks")
      ->transform(CLI::Validator(check, ""))
      ->option_text("N | all");
}

void add_config_options(CLI::App& command, ConfigOptions& options) {
  command.add_option("CONFIG", options.file, "The run's config, a TOML file")
      ->required()
      ->option_text("CONFIG.toml");
  add_settings(command, options.settings);
}

Config ConfigOptions::load() const {
  std::error_code ignored;
  if (file.find('=') != std::string::npos && !std::filesystem::exists(file, ignored))
    fail_user("'{}' is a setting; the config comes first: CONFIG.toml {}", file, shell_word(file));
  return load_config(file, settings);
}

void require_new_folder(const std::filesystem::path& out) {
  if (out.empty()) fail_user("--out is empty; give the name of a new folder");
  std::error_code error;
  const bool exists = std::filesystem::exists(out, error);
  if (error) fail_user("{}: {}; choose another --out", out.string(), error.message());
  if (!exists) return;
  if (!std::filesystem::is_directory(out))
    fail_user("{} is not a folder; choose another --out", out.string());
  if (std::filesystem::is_empty(out)) return;
  fail_user("{} is not empty; choose another --out, or remove it", out.string());
}

void require_new_file(std::string_view what, const std::filesystem::path& path) {
  if (path.empty()) fail_user("{} is empty; give the name of a new file", what);
  if (!path.has_filename()) fail_user("{} {} is a folder; give the name of a new file", what, path.string());
  if (std::filesystem::exists(path))
    fail_user("{} {} exists; give the name of a new file", what, path.string());
}

}  // namespace shoal::cli
