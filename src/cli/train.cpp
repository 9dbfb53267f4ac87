// shoal train: trains a model.
#include "train/trainer.h"

#include <csignal>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/dry_run.h"
#include "cli/planning.h"
#include "core/error.h"
#include "core/file.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "launch/ranks.h"
#include "planner/plan_watch.h"
#include "report/tracer.h"

namespace shoal::cli {
namespace {

// The picture of the predicted step; a layout that was given has none, nor one from an earlier start.
void keep_timeline(const std::optional<RankedPlan>& planned, const std::filesystem::path& file) {
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  if (!planned) return;
  try {
    replace_text(file, timeline_svg(*planned));
  } catch (const UserError& error) {  // a full disk, on which a run may go on
    log::warn("{}; training goes on without the picture of the plan", error.what());
  }
}

}  // namespace

void add_train(CLI::App& app) {
  struct Options : ConfigOptions {
    int ranks = 0;
    bool dry_run = false;
    int ranks_per_host = 0;
    TraceOptions trace;
  };
  auto options = std::make_shared<Options>();
  auto* command = add_command(
      app, "train", "Train a model",
      {{"shoal train configs/quickstart.toml", "a first run, about a minute"},
       {"shoal train configs/quickstart.toml train.steps=2000 run.name=longer",
        "the same with other settings"},
       {"shoal train configs/quickstart.toml init.from=resume", "continue from its latest checkpoint"},
       {"shoal train configs/quickstart.toml init.from=auto",
        "resume if it has a checkpoint, else start: for jobs that are restarted"},
       {"shoal train configs/quickstart.toml --ranks 2", "on two ranks, threads of this process"},
       {"shoal train configs/quickstart.toml --ranks 4 parallel.tensor=2 parallel.sequence=true",
        "in a mesh, 2 data x 2 tensor ranks; see docs/ranks.md"},
       {"mpirun -n 4 shoal train configs/quickstart.toml", "on four, on one machine or many"},
       {"shoal train configs/quickstart.toml --ranks 2 --trace trace.json",
        "a timeline of the ranks; see docs/trace.md"},
       {"shoal train configs/quickstart.toml --ranks 2 parallel.plan=auto",
        "in the layout that the planner finds fastest here; see docs/planner.md"},
       {"shoal train configs/gpt2-124m.toml --dry-run --ranks 240",
        "memory, compute and traffic of a step"}});
  add_config_options(*command, *options);
  add_ranks(*command, options->ranks);
  auto* dry_run = command->add_flag(
      "--dry-run", options->dry_run,
      "Run nothing; print the memory, compute and traffic of a step, for any number of ranks");
  command
      ->add_option("--ranks-per-host", options->ranks_per_host,
                   "With --dry-run: also print the traffic that leaves a host of N neighbouring ranks")
      ->check(takes_integer(1))
      ->option_text("N")
      ->needs(dry_run);
  auto* trace =
      command
          ->add_option("--trace", options->trace.file,
                       "Write a timeline of all ranks for https://ui.perfetto.dev, from the second step on "
                       "(the first one allocates memory and builds kernels)")
          ->option_text("FILE")
          ->check([](const std::string& file) { return file.empty() ? "it needs the name of a file" : ""; })
          ->excludes(dry_run);
  command->add_option("--trace-steps", options->trace.steps, "With --trace: number of steps to record")
      ->check(takes_integer(1))
      ->option_text("N")
      ->default_str("10")
      ->needs(trace);
  command->callback([options] {
    if (options->dry_run) return print_dry_run(options->load(), options->ranks, options->ranks_per_host);
    // A log whose reader is gone (`| head`, a `tee` that was killed) does not end the run; train.log has it,
    // too.
    std::signal(SIGPIPE, SIG_IGN);
    if (detect_launcher().rank == 0) set_stop_message("stopped before step 1; nothing to save");
    int code = 0;
    std::optional<RankedPlan> planned;
    const auto train = [&](const Config& config, World& world) {
      if (config.init.resumes() && world.ranks.rank() == 0) {
        set_stop_message("stopped before the next step; the run is unchanged");
      }
      Tracer tracer(options->trace, world);
      std::optional<PlanWatch> watch;
      const bool first = world.ranks.rank() == 0;
      if (planned && first && options->trace.file.empty()) watch.emplace(planned->prediction);
      bool begun = !first;
      Trainer trainer(config, tracer.world(), &tracer, [&] {
        if (!begun) keep_timeline(planned, config.run.path() / "plan.svg");
        begun = true;
        const auto warning = watch ? watch->begin_step() : "";
        if (!warning.empty()) log::warn("{}", warning);
      });
      const auto result = trainer.run();
      tracer.finish();
      if (first) world.exit_code = code = result.exit_code;
    };
    with_job(
        options->ranks, [&] { return options->load(); },
        [&](const Config& config, const Job& job) {
          if (config.parallel.plan == PlanKind::manual) return run_ranks(config, job, train);
          planned = plan_run(config, job);
          run_ranks(planned->config, job, train);
        });
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace shoal::cli
