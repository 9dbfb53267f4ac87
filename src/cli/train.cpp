// shoal train: a run from its config.
#include "train/trainer.h"

#include <memory>

#include "cli/command.h"

namespace shoal::cli {

void add_train(CLI::App& app) {
  auto options = std::make_shared<ConfigOptions>();
  auto* command =
      add_command(app, "train", "Train a model",
                  {{"shoal train configs/quickstart.toml", "a first run, about a minute"},
                   {"shoal train configs/quickstart.toml train.steps=2000 run.name=longer",
                    "the same with other settings"},
                   {"shoal train configs/quickstart.toml init.from=resume", "go on where it stopped"}});
  add_config_options(*command, *options);
  command->callback([options] { Trainer(options->load()).run(); });
}

}  // namespace shoal::cli
