#include "train/disk_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "checkpoint/store.h"
#include "core/log.h"
#include "core/text.h"
#include "model/unit.h"

namespace shoal {

namespace fs = std::filesystem;

double checkpoint_bytes(const RunPlan& plan) {
  double elements = 0;
  for (const auto& unit : gpt_units(plan.model)) {
    for (const auto& parameter : unit.parameters)
      elements += plan.saved_tensors(unit, parameter) * static_cast<double>(parameter.shape.count());
  }
  return 4.0 * elements * plan.mesh.workers;
}

std::int64_t most_checkpoints(const Config& config) {
  const auto& checkpoint = config.checkpoint;
  const std::int64_t kept = std::int64_t{checkpoint.keep} + 1;
  std::int64_t saves = checkpoint.epochs > 0 ? kept : 1;
  if (checkpoint.interval > 0) {
    saves = std::max(saves, (config.train.steps + checkpoint.interval - 1) / checkpoint.interval);
  }
  const bool best = checkpoint.best && config.eval.interval >= 0;
  // An evaluation that is the best so far saves, too.
  if (best && config.eval.epochs > 0) saves = kept;
  if (best && config.eval.interval > 0) saves += config.train.steps / config.eval.interval;
  return std::min(saves, kept) + (best ? 1 : 0);
}

double bytes_in(const fs::path& folder) {
  double bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_symlink(error) || !entry.is_regular_file(error)) continue;
    if (const auto size = entry.file_size(error); !error) bytes += static_cast<double>(size);
  }
  return bytes;
}

std::string lack_of_space(const fs::path& run, double free, double each, std::int64_t most, double there) {
  if (free < each) {
    return fmt::format(
        "{} has {} free and a checkpoint takes {}: none can be saved. Free some space, or set run.dir to "
        "another disk",
        run.string(), format_bytes(free), format_bytes(each));
  }
  const double all = each * static_cast<double>(most);
  if (free + there >= all) return "";
  return fmt::format(
      "{} has {} free and the run's {} checkpoints of {} take up to {}: saving will fail when the disk is "
      "full. Free some space, lower checkpoint.keep, or set run.dir to another disk",
      run.string(), format_bytes(free), most, format_bytes(each), format_bytes(all));
}

void warn_of_small_disk(const Config& config, const RunPlan& plan) {
  const auto run = config.run.path();
  std::error_code error;
  const auto space = fs::space(run, error);
  if (error) return;
  const auto why = lack_of_space(run, static_cast<double>(space.available), checkpoint_bytes(plan),
                                 most_checkpoints(config), bytes_in(run / kCheckpointsName));
  if (!why.empty()) log::warn("{}", why);
}

}  // namespace shoal
