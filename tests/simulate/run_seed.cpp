#include "simulate/run_seed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "checkpoint/compare.h"
#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/file.h"
#include "data/prepare.h"
#include "launch/run_to_restart.h"
#include "report/metrics.h"
#include "simulate/attempt.h"
#include "train/trainer.h"

namespace shoal::simulate {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 6;
constexpr const char* kRunName = "run";

constexpr const char* kConfig = R"(
[run]
dir = "{}"
name = "{}"
[data]
dir = "{}"
[model]
n_layer = 4
n_head = 2
n_embd = 8
block_size = 8
bias = false
[train]
global_batch = 8
micro_batch = 1
steps = {}
threads = 1
[optim]
lr = 1e-2
[lr_schedule]
warmup_steps = 2
[eval]
interval = 3
sequences = 2
at_start = false
[checkpoint]
interval = 2
keep = 2
best = true
[log]
interval = 1
tensorboard = false
peak_tflops = 1
)";

// A held-back fault: thrown by the checks below.
struct Violation : Error {
  using Error::Error;
};

template <typename... Args>
[[noreturn]] void violated(fmt::format_string<Args...> format, Args&&... args) {
  throw Violation(fmt::format(format, std::forward<Args>(args)...));
}

fs::path checkpoints_of(const fs::path& run) { return run / kCheckpointsName; }

std::optional<fs::path> newest_of(const fs::path& run) { return latest_in(checkpoints_of(run)); }

// Flips a bit of a file of a checkpoint, and returns the file's name.
std::string damage(const fs::path& checkpoint, Random& random) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) files.push_back(entry.path());
  std::ranges::sort(files);
  const auto& path = random.pick(files);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto at = random.below(static_cast<std::int64_t>(fs::file_size(path)));
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ (1 << random.below(8)));
  file.seekp(at);
  file.put(byte);
  return path.filename().string();
}

// A checkpoint changes when a file of it does, or its list of files.
fs::file_time_type newest_change(const fs::path& checkpoint) {
  auto newest = fs::last_write_time(checkpoint);
  for (const auto& file : fs::directory_iterator(checkpoint))
    newest = std::max(newest, file.last_write_time());
  return newest;
}

class SeedRun {
 public:
  SeedRun(std::uint64_t seed, const Scenario& scenario, References& references, fs::path folder, bool trace)
      : seed_(seed),
        random_(seed + 1),
        scenario_(scenario),
        references_(references),
        folder_(std::move(folder)),
        run_(folder_ / kRunName),
        trace_(trace),
        command_(with_memory(references.command(*scenario.training, folder_))),
        to_restart_(RunToRestart::of(command_)) {}

  SeedEnd end() {
    SeedEnd result;
    try {
      for (const auto& attempt : scenario_.attempts) {
        ++result.attempts;
        const auto end = one_more(attempt, result.attempts);
        for (const auto& what : end.happened) ++result.happened[what.substr(0, what.find(" at "))];
      }
      check_end();
    } catch (const std::exception& error) {
      result.failure = fmt::format("attempt {}: {}", result.attempts, error.what());
    }
    return result;
  }

 private:
  // Nothing where the launcher refuses a damaged checkpoint, which is put aside then.
  std::optional<std::vector<std::string>> next_command(const PlannedAttempt& attempt, bool first) {
    const bool launched = attempt.by_launcher && !by_hand_;
    auto command = command_;
    try {
      if (!first && launched)
        command = to_restart_->restart_command(to_restart_->layout(attempt.layout->ranks, 0).settings);
    } catch (const UserError& error) {
      if (!names_damage(error.what())) throw;
      put_aside(error.what());
      return std::nullopt;
    }
    if (!first && !launched) command.push_back("init.from=auto");
    const auto& settings = attempt.layout->settings;
    command.insert(command.end(), settings.begin(), settings.end());
    return command;
  }

  AttemptEnd one_more(const PlannedAttempt& attempt, int number) {
    if (attempt.damage) damage_newest();
    while (true) {
      const auto before = newest_of(run_);
      const auto command = next_command(attempt, number == 1);
      if (!command) continue;
      const auto end = run({.seed = seed_ * 16 + static_cast<std::uint64_t>(number),
                            .disk = folder_,
                            .run = run_,
                            .command = *command,
                            .ranks = attempt.layout->ranks,
                            .ranks_per_host = attempt.ranks_per_host,
                            .faults = attempt.faults,
                            .patience = attempt.patience,
                            .trace = trace_});
      if (trace_) tell(end, number);
      lose_memory(end);
      check(end, before);
      if (!refused(end) || !names_damage(end.errors())) return end;
      put_aside(end.errors());
    }
  }

  fs::path memory() const { return folder_ / "memory"; }

  std::vector<std::string> with_memory(std::vector<std::string> command) const {
    if (!scenario_.memory) return command;
    fs::create_directory(memory());
    command.insert(command.end(), {"checkpoint.memory=true", "checkpoint.memory_dir=" + memory().string()});
    return command;
  }

  // The memory of hosts that were lost.
  void lose_memory(const AttemptEnd& end) const {
    if (!scenario_.memory) return;
    if (end.power_was_cut) fs::remove_all(memory());
    fs::create_directory(memory());
    for (const auto& run : fs::directory_iterator(memory())) {
      for (const int host : end.lost_hosts) fs::remove_all(run.path() / fmt::format("host{}", host));
    }
  }

  static bool refused(const AttemptEnd& end) {
    return std::ranges::any_of(end.ranks, [](const RankEnd& rank) { return rank.exit_code == 2; });
  }

  static void tell(const AttemptEnd& end, int number) {
    fmt::print("attempt {}: {:.3f} s, {} messages, {} changes of files\n", number, end.seconds, end.messages,
               end.file_changes);
    for (std::size_t rank = 0; rank < end.ranks.size(); ++rank) {
      const auto& [code, killed, error] = end.ranks[rank];
      fmt::print("  rank {}: {}{}{}\n", rank, killed ? "killed" : fmt::format("exit {}", code),
                 error.empty() ? "" : ": ", error);
    }
  }

  void damage_newest() {
    const auto newest = newest_of(run_);
    if (!newest) return;
    const auto file = damage(*newest, random_);
    damaged_.insert(newest->filename().string());
    if (trace_) fmt::print("a bit of {}/{} is wrong now\n", newest->filename().string(), file);
  }

  // Renames the damaged checkpoint that the error names, as it asks; the same command comes again.
  void put_aside(const std::string& error) {
    const auto root = checkpoints_of(run_);
    const auto named = std::ranges::find_if(
        damaged_, [&](const auto& name) { return error.find(name) != std::string::npos; });
    fs::remove_all(root / ("damaged-" + *named));  // of an earlier time
    fs::rename(root / *named, root / ("damaged-" + *named));
    damaged_.erase(named);
    by_hand_ = true;
  }

  void check(const AttemptEnd& end, const std::optional<fs::path>& before) {
    if (!end.failure.empty()) violated("it {}", end.failure);
    const bool disturbed = !end.happened.empty();
    const auto errors = end.errors();
    const bool any_killed = std::ranges::any_of(end.ranks, &RankEnd::killed);
    if (!end.succeeded() && !disturbed && damaged_.empty()) violated("it fails undisturbed: {}", errors);
    if (!end.succeeded() && errors.empty() && !any_killed && !was_stopped(end))
      violated("it fails in silence");
    if (refused(end) && !names_damage(errors) && !has(end, "full disk")) violated("it refuses: {}", errors);
    for (const auto& checkpoint : list_checkpoints(checkpoints_of(run_))) {
      const auto name = checkpoint.filename().string();
      if (damaged_.contains(name)) continue;
      auto& verified = verified_[name];
      if (verified == newest_change(checkpoint)) continue;
      const auto faults = verify_checkpoint(checkpoint);
      if (!faults.empty()) violated("{} is not whole: {}", name, faults.front());
      verified = newest_change(checkpoint);
    }
    if (before && !damaged_.contains(before->filename().string()) && !is_kept(before->filename())) {
      violated("{} was there before, and is gone", before->filename().string());
    }
    if (!end.saved.empty() && !is_kept(end.saved)) {
      violated("`latest` named {} before the power cut, and it is gone", end.saved);
    }
  }

  // Whether a checkpoint is there, or a newer one in its place.
  bool is_kept(const fs::path& name) const {
    const auto all = list_checkpoints(checkpoints_of(run_));
    return !all.empty() && all.back().filename() >= name;
  }

  bool names_damage(const std::string& error) const {
    return std::ranges::any_of(damaged_,
                               [&](const auto& name) { return error.find(name) != std::string::npos; });
  }

  static bool was_stopped(const AttemptEnd& end) { return has(end, "stop signal"); }
  static bool has(const AttemptEnd& end, std::string_view kind) {
    return std::ranges::any_of(end.happened, [&](const auto& what) { return what.starts_with(kind); });
  }

  // The run has ended with the bytes of the undisturbed one, and left nothing behind.
  void check_end() const {
    const auto last = checkpoints_of(run_) / fmt::format("step-{:08d}", kSteps);
    const auto comparison = compare_checkpoints(last, references_.checkpoint(*scenario_.training));
    if (!comparison.differences.empty()) {
      const auto& first = comparison.differences.front();
      violated("{} of its tensors differ from the undisturbed run's, the first one is {}{}{}",
               comparison.differences.size(), first.name, first.what.empty() ? "" : ": ", first.what);
    }
    for (const auto& entry : fs::recursive_directory_iterator(run_)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with(".") && name != ".lock") violated("it left {}", entry.path().string());
    }
    check_metrics();
  }

  void check_metrics() const {
    std::vector<std::int64_t> steps;
    for (const auto& record : read_metrics(run_ / "metrics.jsonl").steps) steps.push_back(record.step);
    std::vector<std::int64_t> all(kSteps);
    std::iota(all.begin(), all.end(), 1);
    if (steps != all) violated("metrics.jsonl has the steps {}", fmt::join(steps, ", "));
  }

  std::uint64_t seed_;
  Random random_;
  const Scenario& scenario_;
  References& references_;
  fs::path folder_, run_;
  bool trace_;
  std::vector<std::string> command_;
  std::optional<RunToRestart> to_restart_;
  std::set<std::string> damaged_;                       // the checkpoints that are
  std::map<std::string, fs::file_time_type> verified_;  // checkpoints, when they last changed
  bool by_hand_ = false;
};

}  // namespace

References::References(fs::path folder) : folder_(std::move(folder)) {
  PrepareOptions options;
  options.dataset = "synthetic";
  options.out = folder_ / "data";
  options.threads = 1;
  options.size = 5'000;
  prepare(options);
}

std::vector<std::string> References::command(const Training& training, const fs::path& folder) const {
  const auto file = folder / "run.toml";
  std::ofstream(file) << fmt::format(kConfig, folder.string(), kRunName, (folder_ / "data").string(), kSteps);
  std::vector<std::string> command = {"train", file.string()};
  command.insert(command.end(), training.settings.begin(), training.settings.end());
  return command;
}

fs::path References::checkpoint(const Training& training) {
  auto& made = made_[training.name];
  if (!made.empty()) return made;
  const auto folder = folder_ / training.name;
  fs::create_directories(folder);
  const auto words = command(training, folder);
  const auto& layout = training.layouts.front();
  run_threads({.ranks = layout.ranks}, [&](World& world) {
    auto settings = std::vector(words.begin() + 2, words.end());
    settings.insert(settings.end(), layout.settings.begin(), layout.settings.end());
    Trainer(load_config(words[1], settings), world).run();
  });
  return made = checkpoints_of(folder / kRunName) / fmt::format("step-{:08d}", kSteps);
}

SeedEnd run_seed(std::uint64_t seed, const Scenario& scenario, References& references, const fs::path& folder,
                 bool trace) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  auto result = SeedRun(seed, scenario, references, folder, trace).end();
  fs::remove_all(folder);
  return result;
}

}  // namespace shoal::simulate
