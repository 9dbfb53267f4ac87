// shoal plot: draws the curves of runs, from their metrics.jsonl, as one SVG.
#include "report/plot.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/command.h"
#include "core/error.h"
#include "core/text.h"
#include "report/svg.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

struct PlotOptions {
  std::vector<std::string> runs;
  std::string output;
};

[[noreturn]] void fail_no_run(const fs::path& run) {
  std::vector<std::string> beside;
  std::error_code ignored;
  const auto folder = run.has_parent_path() ? run.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_directory(ignored)) beside.push_back(entry.path().filename().string());
  }
  const auto near = nearest(run.filename().string(), beside);
  fail_user("there is no run {}{}; give the folder of a run, e.g. runs/quickstart", run.string(),
            near.empty() ? "" : fmt::format(" (did you mean {}?)", (run.parent_path() / near).string()));
}

// The path of metrics.jsonl, given a run's folder or that file itself.
fs::path metrics_file(const fs::path& run) {
  if (!fs::exists(run)) fail_no_run(run);
  const auto file = fs::is_directory(run) ? run / "metrics.jsonl" : run;
  if (!fs::exists(file)) {
    fail_user("{} has no metrics.jsonl: it is not the folder of a run, or the run had log.jsonl=false",
              run.string());
  }
  return file;
}

PlotRun read_run(const std::string& argument) {
  const auto file = metrics_file(argument);
  const auto folder = fs::absolute(file).lexically_normal().parent_path();
  return {folder.filename().string(), read_metrics(file)};
}

// The name of a run in the legend: its folder's name, or its whole path where two runs have the same name.
void tell_apart(std::vector<PlotRun>& runs, const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run.name);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (std::ranges::count(names, names[i]) > 1) runs[i].name = arguments[i];
  }
}

void run_plot(const PlotOptions& options) {
  const fs::path output = options.output;
  require_svg(output);
  std::vector<PlotRun> runs;
  for (const auto& argument : options.runs) runs.push_back(read_run(argument));
  tell_apart(runs, options.runs);
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
