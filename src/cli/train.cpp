// shoal train: a run from its config.
#include "train/trainer.h"

#include <memory>

#include "cli/command.h"
#include "train/ranks.h"

namespace shoal::cli {

void add_train(CLI::App& app) {
  struct Options : ConfigOptions {
    int ranks = 0;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      add_command(app, "train", "Train a model",
                  {{"shoal train configs/quickstart.toml", "a first run, about a minute"},
                   {"shoal train configs/quickstart.toml train.steps=2000 run.name=longer",
                    "the same with other settings"},
                   {"shoal train configs/quickstart.toml init.from=resume", "go on where it stopped"},
                   {"shoal train configs/quickstart.toml --ranks 2", "on two ranks, threads of this process"},
                   {"mpirun -n 4 shoal train configs/quickstart.toml", "on four, on one machine or many"}});
  add_config_options(*command, *options);
  add_ranks(*command, options->ranks);
  command->callback([options] {
    with_ranks(
        options->ranks, [&] { return options->load(); },
        [](const Config& config, World& world) { Trainer(config, world).run(); });
  });
}

}  // namespace shoal::cli
