// shoal checkpoint list: lists the checkpoints of a run.
#include <fmt/chrono.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "cli/checkpoint.h"
#include "core/error.h"
#include "core/text.h"
#include "report/metrics.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

// The folder of checkpoints, given a run's folder or that folder itself.
fs::path folder_of_checkpoints(const fs::path& where) {
  if (!fs::exists(where))
    fail_user("there is no run at {}; give the folder of a run, e.g. runs/quickstart", where.string());
  const auto root = fs::is_directory(where / kCheckpointsName) ? where / kCheckpointsName : where;
  if (list_checkpoints(root).empty()) fail_user("{} holds no checkpoint", where.string());
  return root;
}

// Validation losses by step. Empty for a run without readable metrics.
std::map<std::int64_t, double> validation_losses(const fs::path& root) {
  std::map<std::int64_t, double> losses;
  try {
    const auto run = fs::absolute(root).lexically_normal();
    const auto folder = run.filename().empty() ? run.parent_path().parent_path() : run.parent_path();
    for (const auto& record : read_metrics(folder / "metrics.jsonl").evals)
      losses[record.step] = record.val_loss;
  } catch (const UserError&) {
  }
  return losses;
}

bool is_named(const fs::path& root, const char* link, const fs::path& checkpoint) {
  std::error_code none;
  return fs::equivalent(root / link, checkpoint, none);
}

// Why a checkpoint cannot be used; "" when it can.
std::string fault_of(const fs::path& checkpoint, bool read_all) {
  try {
    const CheckpointReader reader(checkpoint, Verify::sizes);
  } catch (const UserError& error) {
    return error.what();
  }
  if (!read_all) return "";
  const auto faults = verify_checkpoint(checkpoint);
  return faults.empty() ? "" : faults.front();
}

void print_list(const fs::path& where, bool read_all) {
  const auto root = folder_of_checkpoints(where);
  const auto losses = validation_losses(root);
  fmt::print("{}\n{:>10}  {:>8}  {:>10}  {:<19}  {:<7}  kind\n", root.string(), "step", "val loss", "size",
             "written", "state");
  std::vector<std::string> faults;
  for (const auto& checkpoint : list_checkpoints(root)) {
    const auto fault = fault_of(checkpoint, read_all);
    const auto step = std::strtoll(checkpoint.filename().c_str() + 5, nullptr, 10);
    const auto loss = losses.find(step);
    std::string size = "-";
    if (fault.empty()) size = format_bytes(static_cast<double>(inspect_checkpoint(checkpoint).bytes));
    std::vector<std::string_view> kinds;
    for (const char* link : {kLatestName, kBestName}) {
      if (is_named(root, link, checkpoint)) kinds.push_back(link);
    }
    const auto line =
        fmt::format("{:>10}  {:>8}  {:>10}  {:<19}  {:<7}  {}", with_commas(step),
                    loss == losses.end() ? "-" : fmt::format("{:.4f}", loss->second), size,
                    time_written(checkpoint), fault.empty() ? "whole" : "damaged", fmt::join(kinds, ", "));
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
    if (!fault.empty()) faults.push_back(fault);
  }
  for (const auto& fault : faults) fmt::print("damaged: {}\n", fault);
}

}  // namespace

std::string time_written(const fs::path& checkpoint) {
  struct stat status {};
  if (::stat((checkpoint / kManifestName).c_str(), &status) != 0) return "-";
  std::tm local{};
  ::localtime_r(&status.st_mtime, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

void add_checkpoint_list(CLI::App& checkpoint) {
  struct Options {
    std::string run;
    bool verify = false;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      add_command(checkpoint, "list", "List the checkpoints of a run: step, loss, size, time, state",
                  {{"shoal checkpoint list runs/quickstart", "all checkpoints of a run"},
                   {"shoal checkpoint list runs/quickstart --verify",
                    "the same, with every file read and its checksums compared"}});
  command->add_option("RUN", options->run, "The folder of a run")->required()->option_text("RUN");
  command->add_flag("--verify", options->verify, "Read every file; without it only sizes are compared");
  command->callback([options] { print_list(options->run, options->verify); });
}

}  // namespace shoal::cli
