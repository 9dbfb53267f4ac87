// One attempt of a job: all of its ranks, each a process of its own to the code under test, in one process of
// the system, which ends with the attempt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "simulate/faults.h"

namespace shoal::simulate {

struct Attempt {
  std::uint64_t seed = 0;
  std::filesystem::path disk;        // what it writes lies in this folder
  std::filesystem::path run;         // the run's own folder in it
  std::vector<std::string> command;  // of shoal: "train", the config, its settings
  int ranks = 1;
  int ranks_per_host = 1;
  std::vector<Fault> faults = {};
  // mpirun kills the other ranks so long after one has ended badly; negative: they have to notice by
  // themselves.
  double patience = 0.1;
  bool trace = false;
};

struct RankEnd {
  int exit_code = 0;
  bool killed = false;  // by a fault or by mpirun
  std::string error;
};

struct AttemptEnd {
  std::vector<RankEnd> ranks = {};
  std::vector<std::string> happened = {};  // of the faults
  std::string failure = {};  // why this is no end that a job may have: it hung or crashed; "" otherwise
  std::string saved = {};    // the checkpoint that `latest` named when the power was cut; "" where it was not
  std::vector<int> lost_hosts = {};  // whose memory is gone
  bool power_was_cut = false;        // so is all memory
  double seconds = 0;                // of the virtual clock
  std::int64_t messages = 0, file_changes = 0;

  bool succeeded() const;      // all ranks exited with 0
  std::string errors() const;  // of all ranks, without repetitions
};

// The clock's limit: deadlines and patience are a second or a few.
inline constexpr double kLimit = 120;
inline constexpr double kDeadline = 1;  // seconds of a collective

AttemptEnd run(const Attempt& attempt);

}  // namespace shoal::simulate
