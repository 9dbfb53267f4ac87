// A run that `shoal launch` may have to restart: its latest checkpoint, and the files that a failed attempt
// leaves in its folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "launch/placement.h"

namespace shoal {

class RunToRestart {
 public:
  // `command`: the arguments of shoal. Returns nothing for commands other than `train`. Throws UserError when
  // the config is invalid.
  static std::optional<RunToRestart> of(const std::vector<std::string>& command);

  const Config& config() const { return config_; }
  std::string folder() const { return config_.run.path().string(); }
  // Whether a process holds the run's lock, and which: "process 123 on HOST", or "another process".
  bool in_use() const;
  std::string holder() const;
  // Whether the hosts may have newer checkpoints in memory, which only the ranks can read.
  bool in_memory() const { return config_.checkpoint.memory; }
  // The step of the latest complete checkpoint on the disk.
  std::optional<std::int64_t> latest_step() const;
  // The last step in the run's metrics; 0: none.
  std::int64_t logged_step() const;
  // The latest step that an attempt can begin with: that of the checkpoint or, where those in memory may be
  // newer, of the metrics; 0: none.
  std::int64_t steps_done() const;
  // Throws UserError where the command's layout is not one of `ranks` ranks. `ranks_per_host` is as in
  // resolve_layout().
  void require_layout(int ranks, int ranks_per_host) const;
  // The command's layout with as many data ranks as `ranks` leave.
  RankLayout layout(int ranks, int ranks_per_host) const;
  // More ranks have no layout: each would need a sequence, a block and a head of its own.
  int most_ranks() const;
  // The number of ranks of a gossip worker, which has a model of its own; 0 without gossip.
  int ranks_of_worker() const;

  // The command that resumes from the latest checkpoint, or starts again where there is none, neither on the
  // disk nor in memory. In the latter case, removes the metrics of the failed attempt, which a new one would
  // refuse to overwrite. `settings` are those of a RankLayout.
  std::vector<std::string> restart_command(const std::vector<std::string>& settings);

 private:
  RunToRestart(std::vector<std::string> command, Config config);
  void remove_measurements() const;

  std::vector<std::string> command_;
  Config config_;
  std::vector<std::string> earlier_files_;  // metrics in the folder before the first attempt
};

}  // namespace shoal
