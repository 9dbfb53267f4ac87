#include "report/run_files.h"

#include <algorithm>
#include <system_error>

#include "core/error.h"
#include "core/text.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

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

fs::path metrics_file(const fs::path& run) {
  if (!fs::exists(run)) fail_no_run(run);
  const auto file = fs::is_directory(run) ? run / "metrics.jsonl" : run;
  if (!fs::exists(file)) {
    fail_user("{} has no metrics.jsonl: it is not the folder of a run, or the run had log.jsonl=false",
              run.string());
  }
  // A pipe would be waited for, and cannot be read twice.
  if (!fs::is_regular_file(file)) fail_user("{} is not a regular file", file.string());
  return file;
}

}  // namespace

std::vector<RunFiles> find_runs(std::span<const std::string> arguments) {
  std::vector<RunFiles> runs;
  std::vector<std::string> names;
  for (const auto& argument : arguments) {
    const auto metrics = metrics_file(argument);
    const auto folder = fs::absolute(metrics).lexically_normal().parent_path();
    names.push_back(folder.filename().string());
    runs.push_back({names.back(), folder, metrics});
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (std::ranges::count(names, names[i]) > 1) runs[i].name = arguments[i];
  }
  return runs;
}

}  // namespace shoal
