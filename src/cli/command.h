// Helpers for subcommands. Each subcommand is one file, cli/NAME.cpp, which defines add_NAME: it registers
// the options and a callback, which does the work after the whole command line has been parsed. A callback
// reports a failure by an exception (UserError: exit code 2, any other: 1), and main prints the message.
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
#include <string_view>
#include <utility>
#include <vector>

#include "config/schema.h"

namespace shoal::cli {

void add_calibrate(CLI::App& app);
void add_checkpoint(CLI::App& app);
void add_completion(CLI::App& app);
void add_config(CLI::App& app);
void add_doctor(CLI::App& app);
void add_plan(CLI::App& app);
void add_plot(CLI::App& app);
void add_eval(CLI::App& app);
void add_export(CLI::App& app);
void add_gossip(CLI::App& app);
void add_launch(CLI::App& app);
void add_man(CLI::App& app);  // `app` lives until its callback has run
void add_prepare(CLI::App& app);
void add_report(CLI::App& app);
void add_sample(CLI::App& app);
void add_schedule(CLI::App& app);
void add_serve(CLI::App& app);
void add_size(CLI::App& app);
void add_trace(CLI::App& app);
void add_train(CLI::App& app);

// An example in the help: a command line and its meaning.
using Examples = std::vector<std::pair<std::string, std::string>>;

// Adds a subcommand; its help shows `what` (one line) and `examples`.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& what,
                      const Examples& examples);

// Sets the format of the help. Call it before adding commands, which inherit it.
void use_help_formatter(CLI::App& app);

// CONFIG.toml [section.key=value ...]
struct ConfigOptions {
  std::string file;
  std::vector<std::string> settings;
  Config load() const;
};
void add_config_options(CLI::App& command, ConfigOptions& options);

// [section.key=value ...] only, for commands that take the config from elsewhere.
void add_settings(CLI::App& command, std::vector<std::string>& settings);

// --ranks N; 0 where it is not given, kAllRanks for "all" (launch/ranks.h).
CLI::Option* add_ranks(CLI::App& command, int& ranks);

// Checks of an option's value: `option->check(takes_integer(1))`. Each error shows the value and the allowed
// values.
inline constexpr std::int64_t kMostInt = std::numeric_limits<int>::max(),
                              kMostInt64 = std::numeric_limits<std::int64_t>::max();
CLI::Validator takes_integer(std::int64_t least, std::int64_t most = kMostInt);
CLI::Validator takes_number(const Bounds& bounds);
CLI::Validator takes_one_of(std::vector<std::string> words);

// Throws UserError unless the folder of --out is absent or empty.
void require_new_folder(const std::filesystem::path& out);
// Throws UserError unless `path` names a file that is absent. `what` names the option in the error.
void require_new_file(std::string_view what, const std::filesystem::path& path);

}  // namespace shoal::cli
