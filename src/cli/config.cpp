// shoal config: explains the keys of a config, and prints a config with all keys resolved.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "config/follow.h"
#include "core/error.h"

namespace shoal::cli {
namespace {

struct PrintOptions {
  bool explain = false, comments = false;
  std::string dump;
  std::vector<std::string> rest;  // with --explain: sections or keys; with --dump: settings
};

void print_config(const PrintOptions& options) {
  if (!options.dump.empty()) {
    const auto config = load_config(options.dump, options.rest);
    log_followed(config);
    fmt::print("{}", to_toml(config, options.comments));
  } else if (!options.explain && !options.rest.empty()) {
    fail_user("no action is given for {}: use `shoal config --dump FILE` or `shoal config --explain KEY`",
              options.rest.front());
  } else if (options.rest.empty()) {
    fmt::print("{}", explain_config());
  } else {
    for (const auto& filter : options.rest) fmt::print("{}", explain_config(filter));
  }
}

}  // namespace

void add_config(CLI::App& app) {
  auto options = std::make_shared<PrintOptions>();
  auto* command =
      add_command(app, "config", "Explain the config's keys, or print a config with every key filled in",
                  {{"shoal config --explain optim", "The keys of [optim]: meaning and allowed values"},
                   {"shoal config --dump configs/quickstart.toml train.steps=500 > mine.toml",
                    "A complete config, defaults and settings filled in"}});
  auto* explain = command->add_flag("--explain", options->explain,
                                    "Type, default, allowed values and meaning of every key (the default)");
  auto* dump = command->add_option("--dump", options->dump, "Print CONFIG.toml with every key filled in")
                   ->option_text("CONFIG.toml")
                   ->excludes(explain);
  command->add_flag("--comments", options->comments, "With --dump: add each key's meaning")->needs(dump);
  command
      ->add_option(
          "rest", options->rest,
          "With --explain: only these sections or keys; with --dump: keys to set, as section.key=value")
      ->option_text("[KEY | section.key=value ...]");
  command->callback([options] { print_config(*options); });
}

}  // namespace shoal::cli
