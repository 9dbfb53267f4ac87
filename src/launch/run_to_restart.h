// The folder of a run that `shoal launch` may have to start again: what it can go on from, and what a dead
// attempt leaves there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace shoal {

class RunToRestart {
 public:
  // `command` is what follows `shoal`; nothing for commands other than `train`. Throws UserError when the
  // config is faulty, or when `ranks` cannot share it. `ranks_per_host` as resolve_layout takes it.
  static std::optional<RunToRestart> of(const std::vector<std::string>& command, int ranks,
                                        int ranks_per_host);

  std::string folder() const { return config_.run.path().string(); }
  // Of its latest whole checkpoint.
  std::optional<std::int64_t> latest_step() const;
  // Why so many ranks cannot share the run; "" where they can.
  std::string objection_to(int ranks, int ranks_per_host) const;
  // Of a worker of gossip, which has a model that no other rank has; 0 where all ranks train one.
  int ranks_of_worker() const;

  // The command that goes on from the latest checkpoint, or begins again where there is none: then the dead
  // attempt's measurements are removed, which the new one would refuse to overwrite.
  std::vector<std::string> restart_command(int ranks);

 private:
  RunToRestart(std::vector<std::string> command, Config config);
  void remove_measurements() const;

  std::vector<std::string> command_;
  Config config_;
  std::vector<std::string> there_before_;  // files that were in the folder before the first attempt
};

}  // namespace shoal
