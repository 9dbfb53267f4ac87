// The program: reads the command line, runs one subcommand, and turns failures into messages and exit codes.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/command_table.h"
#include "cli/complete.h"
#include "comm/world.h"
#include "core/bus_error.h"
#include "core/cpu.h"
#include "core/error.h"
#include "core/file.h"
#include "core/interrupt.h"
#include "core/process_limits.h"
#include "core/text.h"
#include "core/version.h"

namespace shoal::cli {
namespace {

constexpr int kDone = 0, kFailed = 1, kUserError = 2;

// Runs before all other initialisation of Shoal, which may use instructions that the processor lacks.
[[gnu::constructor(101)]] void check_first() { check_cpu(); }

void add_commands(CLI::App& app) {
  add_prepare(app);
  add_train(app);
  add_trace(app);
  add_launch(app);
  add_eval(app);
  add_sample(app);
  add_serve(app);
  add_plan(app);
  add_plot(app);
  add_report(app);
  add_size(app);
  add_schedule(app);
  add_gossip(app);
  add_calibrate(app);
  add_checkpoint(app);
  add_export(app);
  add_config(app);
  add_doctor(app);
  add_man(app);
  add_completion(app);
}

const CLI::App& chosen(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : chosen(*parsed.front());
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// The first example in a command's help.
std::string example_of(const CLI::App& command) {
  const auto examples = read_footer(command.get_footer()).examples;
  return examples.empty() ? "" : examples.front().first;
}

// The error for an unknown argument, with the nearest known one.
std::string explain_leftover(const CLI::App& app, const std::string& leftover) {
  const auto& command = chosen(app);
  const bool option = leftover.starts_with('-');
  if (leftover.starts_with("--") && leftover.find('.') != std::string::npos) {
    return fmt::format("'{}' has no value; write {}=VALUE", leftover, leftover);
  }
  if (!option && !command.get_parent() && leftover.ends_with(".toml")) {
    return fmt::format("'{}' is not a command; to train with this config, write: shoal train {}", leftover,
                       leftover);
  }
  const auto commands = command_names(command);
  if (!option && commands.empty()) return fmt::format("unexpected argument '{}'", leftover);
  const auto known = option ? option_names(command) : commands;
  const auto near = nearest(leftover.substr(0, leftover.find('=')), known);
  return fmt::format("unknown {} '{}'; {}", option ? "option" : "command", leftover,
                     near.empty() ? fmt::format("known: {}", fmt::join(known, ", "))
                                  : fmt::format("did you mean {}?", near));
}

// The error for an option without its value, given CLI11's message: "--ranks: 1 required INT missing".
std::string explain_missing_value(const CLI::App& app, const std::string& message) {
  const auto name = message.substr(0, message.find(':'));
  const auto* option = chosen(app).get_option_no_throw(name);
  return option ? fmt::format("{} needs a value: {}", name, value_form(*option)) : message;
}

// A full disk or a closed descriptor behind standard error must not turn one failure into another.
void print_error(std::string_view message) {
  std::fputs(fmt::format("shoal: error: {}\n", message).c_str(), stderr);
}

// The result of a command that printed its output, the last of which may still be in a buffer.
int with_output(int code) {
  errno = 0;
  const bool printed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (printed || (code != kDone && code != kFailed)) return code;
  const std::string reason = errno == 0 ? "" : fmt::format(": {}", std::strerror(errno));
  print_error("cannot write to standard output" + reason);
  return kUserError;
}

int parse_error(const CLI::App& app, const CLI::ParseError& error) {
  const auto leftovers = app.remaining(true);
  std::string message = error.what();
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (message.ends_with(" missing")) message = explain_missing_value(app, message);
  if (!leftovers.empty()) {
    message = explain_leftover(app, leftovers.front()) + (missing ? fmt::format("; {}", message) : "");
  }
  if (const auto example = example_of(chosen(app)); missing && !example.empty()) {
    message += fmt::format(", e.g. {}", example);
  }
  print_error(plain_text(fmt::format("{} (see {} --help)", message, full_name(chosen(app)))));
  return kUserError;
}

int run(int argc, char** argv) {
  CLI::App app("Shoal trains GPT-2: prepare a text, train, evaluate, resume and sample, from one program.",
               "shoal");
  use_help_formatter(app);
  app.set_version_flag("--version", std::string("shoal ") + kVersion, "Print the version");
  app.set_help_flag("-h,--help", "Print this help");
  app.footer(
      "shoal COMMAND --help explains a command, with examples.\n\nA first run, in a minute or two:\n"
      "  shoal prepare synthetic --out data/synthetic\n"
      "  shoal train configs/quickstart.toml\n"
      "  shoal sample --checkpoint runs/quickstart\n"
      "  shoal plot runs/quickstart -o quickstart.svg\n\nThen a text of your own: configs/own-text.toml.");
  app.require_subcommand(0, 1);  // so that `config --explain eval` has an argument, not a second command
  add_commands(app);
  keep_brackets(app);
  if (argc > 1 && std::string_view(argv[1]) == kCompleteWord) {
    fmt::print("{}", completion_lines(complete(command_table(app), {argv + 2, argv + argc})));
    return kDone;
  }
  if (detect_launcher().rank == 0) set_stop_message("stopped");
  try {
    app.parse(reversed_arguments(app, {argv + std::min(1, argc), argv + argc}));
  } catch (const CLI::Success& wish) {  // --help, --version
    return app.remaining(true).empty() ? app.exit(wish) : parse_error(app, wish);
  } catch (const CLI::RuntimeError& ended) {  // a command that has printed its result
    return ended.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return parse_error(app, error);
  }
  if (!app.get_subcommands().empty()) return kDone;
  fmt::print(stderr, "{}", app.help());
  return kUserError;
}

}  // namespace
}  // namespace shoal::cli

int main(int argc, char** argv) {
  using namespace shoal;
  open_standard_streams();
  save_address_space();
  explain_bus_errors();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of the write, as a full disk is
  try {
    return cli::with_output(cli::run(argc, argv));
  } catch (const UserError& error) {
    cli::print_error(error.what());
    return cli::kUserError;
  } catch (const StoppedByPeer&) {
  } catch (const std::filesystem::filesystem_error& error) {  // a path that the user named
    cli::print_error(fmt::format("{}: {}", error.path1().string(), error.code().message()));
    return cli::kUserError;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) {
      cli::print_error("cannot write to standard output: " + error.code().message());
      return cli::kUserError;
    }
    cli::print_error(message_of(error));
  } catch (const std::exception& error) {
    cli::print_error(message_of(error));
  }
  return cli::kFailed;
}
