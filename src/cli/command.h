// How subcommands are made. Each is one file, cli/NAME.cpp, which defines add_NAME: it registers the
// subcommand's options and a callback that does the work once the whole command line has been read. A
// callback reports failure by throwing (UserError: exit code 2, anything else: 1); main prints the message.
//
//   void add_size(CLI::App& app) {
//     auto options = std::make_shared<ConfigOptions>();
//     auto* command = add_command(app, "size", "Print what a model needs", {{"shoal size gpt2.toml",
//     "..."}}); add_config_options(*command, *options); command->callback([options] { ... options->load() ...
//     });
//   }
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace shoal::cli {

void add_checkpoint(CLI::App& app);
void add_config(CLI::App& app);
void add_doctor(CLI::App& app);
void add_plot(CLI::App& app);
void add_eval(CLI::App& app);
void add_export(CLI::App& app);
void add_gossip(CLI::App& app);
void add_launch(CLI::App& app);
void add_prepare(CLI::App& app);
void add_sample(CLI::App& app);
void add_schedule(CLI::App& app);
void add_size(CLI::App& app);
void add_trace(CLI::App& app);
void add_train(CLI::App& app);

// A command line and what it does, for the help.
using Examples = std::vector<std::pair<std::string, std::string>>;

// A subcommand with `what` (one line) and `examples` in its help.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      const Examples& examples);

// Every command's help in one form; to be called before commands are added, which inherit it.
void use_help_formatter(CLI::App& app);

// CONFIG.toml [section.key=value ...]
struct ConfigOptions {
  std::string file;
  std::vector<std::string> settings;
  Config load() const { return load_config(file, settings); }
};
void add_config_options(CLI::App& command, ConfigOptions& options);

// [section.key=value ...] alone, for commands that find the config elsewhere.
void add_settings(CLI::App& command, std::vector<std::string>& settings);

// --ranks N; 0 where it is not given, kAllRanks for "all" (launch/ranks.h).
void add_ranks(CLI::App& command, int& ranks);

// Checks of an option's value, `option->check(takes_integer(1))`. Each error shows the value and says what
// the option takes.
inline constexpr std::int64_t kMostInt = std::numeric_limits<int>::max(),
                              kMostInt64 = std::numeric_limits<std::int64_t>::max();
CLI::Validator takes_integer(std::int64_t least, std::int64_t most = kMostInt);
CLI::Validator takes_number(const Bounds& bounds);
CLI::Validator takes_one_of(std::vector<std::string> words);

// For --out: throws UserError where there is something already.
void require_new_folder(const std::filesystem::path& out);

}  // namespace shoal::cli
