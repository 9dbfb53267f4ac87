// shoal calibrate: measures this machine for the planner.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/planning.h"
#include "cli/sizes.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

struct CalibrateOptions : ConfigOptions {
  int ranks = 0;
  bool again = false;
};

Config load(const CalibrateOptions& options) {
  if (options.file.empty()) return {};
  Config config = options.load();
  resolve_vocabulary(config);
  return config;
}

void calibrate(const CalibrateOptions& options, const Config& config, const Job& job) {
  const Stopwatch watch;
  const auto machine = measured_machine(config, job, false, options.again);
  machine->measure_collectives();
  SearchResult result;
  if (!options.file.empty()) result = search_plans(config, job.ranks, *machine);
  if (log::thread_muted()) return;
  const int measured = machine->measured();
  const auto cache = MeasuredMachine::default_cache().string();
  fmt::print("{}, {} rank{}: {} measurement{} in {}, {}{}\n", machine->name(), job.ranks,
             job.ranks == 1 ? "" : "s", measured, measured == 1 ? "" : "s", format_duration(watch.seconds()),
             cache.empty()      ? "not kept, since neither HOME nor XDG_CACHE_HOME is set"
             : machine->saved() ? "kept in "
                                : "not kept, since Shoal cannot write to ",
             cache);
  if (result.unmeasured > 0)
    fmt::print("{} layouts need more; the same command goes on with them\n", result.unmeasured);
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
        "anew, where the machine was busy before"},
       {"mpirun -n 4 shoal calibrate configs/gpt2-124m.toml", "the hosts and the network of a job"}});
  command->add_option("config", options->file, "The config of the run")->option_text("[CONFIG.toml]");
  add_settings(*command, options->settings);
  add_ranks(*command, options->ranks);
  command->add_flag("--again", options->again, "Measure again what was measured before");
  command->callback([options] {
    with_job(
        options->ranks, [&] { return load(*options); },
        [&](const Config& config, const Job& job) { calibrate(*options, config, job); });
  });
}

}  // namespace shoal::cli
