// shoal plot: draws the curves of runs, from their metrics.jsonl, as one SVG.
#include "report/plot.h"

#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "report/run_files.h"
#include "report/svg.h"

namespace shoal::cli {
namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::string output;
};

void run_plot(const PlotOptions& options) {
  const std::filesystem::path output = options.output;
  require_svg(output);
  std::vector<PlotRun> runs;
  for (const auto& run : find_runs(options.runs)) runs.push_back({run.name, read_metrics(run.metrics)});
  write_svg(output, plot_svg(runs));
}

}  // namespace

void add_plot(CLI::App& app) {
  auto options = std::make_shared<PlotOptions>();
  auto* command =
      add_command(app, "plot", "Draw the curves of one or several runs: loss, learning rate, tokens/s",
                  {{"shoal plot runs/quickstart -o quickstart.svg", "One run, finished or still running"},
                   {"shoal plot runs/first runs/second -o both.svg", "Two runs in one plot"}});
  command->add_option("RUN", options->runs, "Folders of runs")->required()->option_text("RUN [RUN ...]");
  command->add_option("-o,--output", options->output, "The picture to write, an SVG")
      ->required()
      ->option_text("FILE.svg");
  command->callback([options] { run_plot(*options); });
}

}  // namespace shoal::cli
