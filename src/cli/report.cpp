// shoal report: shows runs on one HTML page, once or for as long as they go on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "checkpoint/run_lock.h"
#include "cli/command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/text.h"
#include "report/page/page.h"

namespace shoal::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;
  bool follow = false;
};

using Files = std::vector<RunFiles>;

std::vector<PageRun> read_runs(const Files& files) {
  std::vector<PageRun> runs;
  for (const auto& run : files) runs.push_back(read_page_run(run));
  return runs;
}

void require_html(const std::filesystem::path& output) {
  const auto extension = output.extension();
  if (extension == ".html" || extension == ".htm") return;
  fail_user("{}: the page is HTML; name it {}.html", output.string(), output.stem().string());
}

// Replaces the page in one step: a browser may be reading the old one.
void write_page(const std::string& output, std::vector<PageRun> runs, int refresh_seconds, bool first) {
  const auto page = runs_page(std::move(runs), refresh_seconds);
  replace_text(output, page);
  if (!first) return;
  fmt::print("wrote {} ({}); open it in a browser\n", output, format_bytes(static_cast<double>(page.size())));
  std::fflush(stdout);
}

bool any_running(const std::vector<PageRun>& runs) {
  return std::ranges::any_of(runs, [](const PageRun& run) { return run.state == RunState::running; });
}

// Steps of the runs that go on, done and in all.
std::pair<double, double> steps_of(const std::vector<PageRun>& runs) {
  double done = 0, all = 0;
  for (const auto& run : runs) {
    if (run.state != RunState::running) continue;
    done += static_cast<double>(run.last_step());
    all += run.config ? static_cast<double>(run.config->train.steps) : 0;
  }
  return {done, all};
}

// Waits, but not beyond the end of the last run, nor when the user wants to stop.
void wait_for_steps(const Files& files, double seconds) {
  const Stopwatch watch;
  const auto in_use = [](const RunFiles& run) { return run_in_use(run.folder); };
  while (watch.seconds() < seconds && !InterruptGuard::requested() && std::ranges::any_of(files, in_use))
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

// Writes the page again and again, with at most a twentieth of a core, until the runs have ended.
void follow_runs(const Files& files, const std::string& output) {
  InterruptGuard guard;
  Stopwatch watch;
  auto runs = read_runs(files);
  if (!any_running(runs)) {
    write_page(output, std::move(runs), 0, true);
    return log::info("no run is going on: there is nothing to follow");
  }
  auto [shown, all] = steps_of(runs);
  Progress progress("following", all, "steps");
  progress.start_at(shown);
  for (bool first = true;; first = false) {
    const bool over = !any_running(runs) || InterruptGuard::requested();
    const auto now = steps_of(runs).first;
    const double rest = std::max(5.0, 20 * watch.seconds());
    write_page(output, std::move(runs), over ? 0 : static_cast<int>(rest), first);
    if (over) break;
    if (now > shown) progress.update(shown = now);
    wait_for_steps(files, rest);
    watch.restart();
    runs = read_runs(files);
  }
  progress.clear();
  if (const char* signal = InterruptGuard::requested()) {
    log::info("stopped by {}; the page has the runs as they are now", signal);
    throw CLI::RuntimeError(InterruptGuard::exit_code(signal));
  }
  log::info("the runs have ended; the page is final");
}

}  // namespace

void add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  auto* command =
      add_command(app, "report", "Show runs on one HTML page: curves, figures, configs and plans",
                  {{"shoal report runs/quickstart -o quickstart.html", "One run, finished or still running"},
                   {"shoal report runs/first runs/second -o both.html",
                    "Two runs over each other, with the keys of the config in which they differ"},
                   {"shoal report runs/quickstart -o live.html --follow",
                    "Write the page again until the run ends; the open page reloads itself"}});
  command->add_option("RUN", options->runs, "Folders of runs")->required()->option_text("RUN [RUN ...]");
  command->add_option("-o,--output", options->output, "The page to write; it needs no network")
      ->required()
      ->option_text("FILE.html");
  command->add_flag("--follow", options->follow, "Keep the page up to date until the runs end");
  command->callback([options] {
    require_html(options->output);
    const auto files = find_runs(options->runs);
    if (options->follow) return follow_runs(files, options->output);
    write_page(options->output, read_runs(files), 0, true);
  });
}

}  // namespace shoal::cli
