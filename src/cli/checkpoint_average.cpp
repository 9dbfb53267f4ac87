// shoal checkpoint average: averages the models of several workers into one.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "checkpoint/average.h"
#include "cli/checkpoint.h"
#include "core/progress.h"
#include "core/text.h"
#include "data/staged_folder.h"

namespace shoal::cli {
namespace {

struct AverageOptions {
  std::string where, out;
};

void average(const AverageOptions& options) {
  require_new_folder(options.out);
  CheckpointReader checkpoint(options.where);
  StagedFolder staged(options.out);
  staged.begin();
  const auto name = checkpoint.directory().filename().string();
  Progress progress("averaging " + name, 0, "B");
  const auto result =
      average_workers(checkpoint, staged.path(), [&](std::uint64_t done, std::uint64_t total) {
        progress.set_total(static_cast<double>(total));
        progress.update(static_cast<double>(done));
      });
  progress.finish();
  staged.commit();
  fmt::print("{}: the mean of {} workers' models after step {}, {} tensors, {}\n", options.out,
             result.workers, with_commas(checkpoint.info().step), result.tensors,
             format_bytes(static_cast<double>(result.bytes)));
}

}  // namespace

void add_checkpoint_average(CLI::App& checkpoint) {
  auto options = std::make_shared<AverageOptions>();
  auto* command = add_command(checkpoint, "average", "Average the models of several workers into one",
                              {{"shoal checkpoint average runs/gossip --out runs/gossip-average",
                                "the latest checkpoint of a gossip run"},
                               {"shoal train next.toml init.from=checkpoint:runs/gossip-average",
                                "a run that starts from the average"}});
  command->add_option("DIR", options->where, "A run, or one of its checkpoints")->required();
  command->add_option("--out", options->out, "The new folder for the averaged checkpoint")
      ->required()
      ->option_text("DIR");
  command->callback([options] { average(*options); });
}

}  // namespace shoal::cli
