#include "report/page/run.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "checkpoint/run_lock.h"
#include "checkpoint/store.h"
#include "core/error.h"
#include "core/file.h"
#include "report/finals.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTimelineName = "plan.svg";
// Bytes; a config has about 10 KiB, the timeline of 16 stages and 256 micro-batches 2 MiB.
constexpr std::uint64_t kLargestConfig = 1 << 20, kLargestTimeline = 16 << 20;

std::optional<Config> read_stored(const fs::path& file, PageRun& run) {
  try {
    if (!fs::exists(file)) {
      run.notes.push_back(fmt::format("{} is not there", file.string()));
      return std::nullopt;
    }
    return stored_config(read_text(file, kLargestConfig), file.string());
  } catch (const UserError& error) {
    run.notes.emplace_back(error.what());
    return std::nullopt;
  }
}

// The last step may lie between two logged ones; the checkpoint at the run's end has it.
std::int64_t saved_step(const fs::path& folder) {
  const auto latest = latest_in(folder / kCheckpointsName);
  if (!latest) return 0;
  const auto name = latest->filename().string();
  const auto digits = std::min(name.find_first_of("0123456789"), name.size());
  std::int64_t step = 0;
  std::from_chars(name.data() + digits, name.data() + name.size(), step);
  return step;
}

// Whether so many evaluations in a row have not improved that the run ended by itself (eval.patience).
bool stopped_early(const PageRun& run) {
  const auto patience = run.config->eval.patience;
  const auto best = finals_of(run.metrics).best;
  if (patience == 0 || !best) return false;
  const auto later =
      std::ranges::count_if(run.metrics.evals, [&](const auto& r) { return r.step > best->step; });
  return later >= patience;
}

// The state of a run that no process works on.
RunState state_at_rest(const PageRun& run, const fs::path& folder) {
  if (!run.config || run.config->train.steps == 0) return RunState::ended;
  const auto step = std::max(run.last_step(), saved_step(folder));
  return step >= run.config->train.steps || stopped_early(run) ? RunState::finished : RunState::stopped;
}

}  // namespace

std::int64_t PageRun::last_step() const {
  std::int64_t last = 0;
  if (!metrics.steps.empty()) last = metrics.steps.back().step;
  if (!metrics.evals.empty()) last = std::max(last, metrics.evals.back().step);
  return last;
}

PageRun read_page_run(const RunFiles& files) {
  PageRun run{.name = files.name, .folder = files.folder.string()};
  run.config = read_stored(files.folder / "config.toml", run);
  run.plan = read_stored(files.folder / "plan.toml", run);
  if (std::error_code none; fs::exists(files.folder / kTimelineName, none)) {
    try {
      run.timeline = read_text(files.folder / kTimelineName, kLargestTimeline);
    } catch (const UserError& error) {
      run.notes.emplace_back(error.what());
    }
  }
  const bool in_use = run_in_use(files.folder);  // asked first: the metrics of a run at rest are complete
  run.metrics = read_metrics_so_far(files.metrics);
  run.state = in_use ? RunState::running : state_at_rest(run, files.folder);
  return run;
}

}  // namespace shoal
