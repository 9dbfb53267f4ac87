#include "launch/run_to_restart.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "checkpoint/run_lock.h"
#include "checkpoint/store.h"
#include "config/layout.h"
#include "config/plan.h"
#include "config/pretrained.h"
#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

bool is_measurement(const std::string& name) {
  return name == "metrics.jsonl" || name.find("tfevents") != std::string::npos;
}

std::vector<std::string> measurements_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder, absent)) {
    const auto name = entry.path().filename().string();
    if (is_measurement(name)) names.push_back(name);
  }
  return names;
}

// 0 where there is none.
std::int64_t last_logged_step(const fs::path& metrics) {
  constexpr std::streamoff kLongestRecords = 1 << 16;
  constexpr std::string_view kKey = "\"step\":";
  std::ifstream stream(metrics, std::ios::binary | std::ios::ate);
  stream.seekg(std::max<std::streamoff>(0, stream.tellg() - kLongestRecords));
  const std::string end(std::istreambuf_iterator<char>(stream), {});
  std::int64_t step = 0;
  if (const auto at = end.rfind(kKey); at != std::string::npos)
    std::from_chars(end.data() + at + kKey.size(), end.data() + end.size(), step);
  return step;
}

}  // namespace

std::optional<RunToRestart> RunToRestart::of(const std::vector<std::string>& command) {
  const auto asks_for_help = [](const std::string& word) { return word == "-h" || word == "--help"; };
  if (command.front() != "train" || std::ranges::any_of(command, asks_for_help)) return std::nullopt;
  std::vector<std::string> words;  // the config and its settings, without options
  for (std::size_t i = 1; i < command.size(); ++i) {
    const auto& word = command[i];
    if (!word.starts_with('-')) {
      words.push_back(word);
    } else if (word != "--dry-run" && word.find('=') == std::string::npos) {
      ++i;  // the option's value
    }
  }
  if (words.empty()) fail_user("train needs a config: shoal launch -n N -- train CONFIG.toml");
  return RunToRestart(command, load_config(words.front(), std::span(words).subspan(1)));
}

RunToRestart::RunToRestart(std::vector<std::string> command, Config config)
    : command_(std::move(command)), config_(std::move(config)), earlier_files_(measurements_in(folder())) {}

bool RunToRestart::in_use() const { return run_in_use(config_.run.path()); }

std::string RunToRestart::holder() const {
  const auto holder = lock_holder(config_.run.path());
  return holder.empty() ? "another process" : holder;
}

std::optional<std::int64_t> RunToRestart::latest_step() const {
  const auto latest = latest_in(config_.run.path() / kCheckpointsName);
  if (!latest) return std::nullopt;
  return step_of(*latest);  // also of a damaged one, of which the ranks say more
}

std::int64_t RunToRestart::logged_step() const {
  return last_logged_step(config_.run.path() / "metrics.jsonl");
}

std::int64_t RunToRestart::steps_done() const {
  const auto saved = latest_step().value_or(0);
  return in_memory() ? std::max(saved, logged_step()) : saved;
}

void RunToRestart::require_layout(int ranks, int ranks_per_host) const {
  // Such a run chooses its layout itself, and says where there is none.
  if (config_.parallel.plan == PlanKind::automatic) return;
  auto config = config_;
  resolve_layout(config, ranks, ranks_per_host);
}

RankLayout RunToRestart::layout(int ranks, int ranks_per_host) const {
  auto config = config_;
  auto& parallel = config.parallel;
  RankLayout result;
  if (parallel.data != 0 && parallel.data * ranks_of_model(parallel) != ranks)
    result.settings.push_back("parallel.data=0");
  parallel.data = 0;
  try {
    resolve_layout(config, ranks, ranks_per_host);
    const int workers = worker_count(config);
    result.mesh = mesh_text({.pipeline = parallel.pipeline,
                             .data = parallel.data / workers,
                             .tensor = parallel.tensor,
                             .workers = workers},
                            parallel.sequence);
  } catch (const UserError& error) {
    result.objection = error.what();
  }
  return result;
}

int RunToRestart::most_ranks() const {
  const auto& model = config_.model;
  const std::int64_t most = std::int64_t{model.n_layer} * model.n_head * config_.train.global_batch;
  return static_cast<int>(std::min<std::int64_t>(most, std::numeric_limits<int>::max()));
}

int RunToRestart::ranks_of_worker() const {
  if (config_.parallel.engine != EngineKind::gossip) return 0;
  return static_cast<int>(config_.gossip.worker_size * ranks_of_model(config_.parallel));
}

std::vector<std::string> RunToRestart::restart_command(const std::vector<std::string>& settings) {
  auto command = command_;
  command.insert(command.end(), settings.begin(), settings.end());
  if (latest_step()) {
    command.push_back("init.from=resume");
  } else if (in_memory()) {
    const auto& from = config_.init.from;
    const bool as_given = config_.init.resumes() || start_without_checkpoint(from);
    if (!as_given) command.push_back("init.from=" + (from == "scratch" ? "auto" : "auto:" + from));
  } else {
    remove_measurements();
  }
  return command;
}

void RunToRestart::remove_measurements() const {
  for (const auto& name : measurements_in(folder())) {
    const bool ours = std::find(earlier_files_.begin(), earlier_files_.end(), name) == earlier_files_.end();
    std::error_code ignored;
    if (ours) fs::remove(fs::path(folder()) / name, ignored);
  }
}

}  // namespace shoal
