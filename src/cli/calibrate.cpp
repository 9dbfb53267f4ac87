// shoal calibrate: measures this machine for the planner.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/planning.h"
#include "cli/sizes.h"
#include "core/clock.h"
#include "core/text.h"
#include "launch/ranks.h"
#include "planner/measured_machine.h"

namespace shoal::cli {
namespace {

struct CalibrateOptions : ConfigOptions {
  int ranks = 0;
  bool again = false;
};

void run_calibrate(const CalibrateOptions& options) {
  Config config;
  if (!options.file.empty()) {
    config = options.load();
    resolve_vocabulary(config);
  }
  const int ranks = ranks_to_start(config, options.ranks, {});
  const Stopwatch watch;
  MeasuredMachine machine(ranks, tell_measurement, MeasuredMachine::default_cache(), options.again);
  machine.measure_collectives();
  if (!options.file.empty()) search_plans(config, ranks, machine);
  fmt::print("{}, {} rank{}: {} measurement{} in {}, kept in {}\n", machine.name(), ranks,
             ranks == 1 ? "" : "s", machine.measured(), machine.measured() == 1 ? "" : "s",
             format_duration(watch.seconds()), MeasuredMachine::default_cache().string());
}

}  // namespace

void add_calibrate(CLI::App& app) {
  auto options = std::make_shared<CalibrateOptions>();
  auto* command = add_command(
      app, "calibrate", "Measure this machine for the planner; plans measure what is missing themselves",
      {{"shoal calibrate --ranks 4", "the collectives of groups of 2 and 4 ranks that are threads"},
       {"shoal calibrate configs/gpt2-124m.toml --ranks 4",
        "and the parts of steps that plans of a config need"},
       {"shoal calibrate configs/gpt2-124m.toml --ranks 4 --again",
        "anew, where the machine was busy before"}});
  command->add_option("config", options->file, "The config of the run")->option_text("CONFIG.toml");
  add_settings(*command, options->settings);
  add_ranks(*command, options->ranks);
  command->add_flag("--again", options->again, "Measure what is known too");
  command->callback([options] { run_calibrate(*options); });
}

}  // namespace shoal::cli
