// A run as its page shows it, read from its folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "report/metrics.h"
#include "report/run_files.h"

namespace shoal {

enum class RunState : std::uint8_t {
  running,   // a process holds the run's folder
  finished,  // it has all of its steps
  stopped,   // it has not
  ended,     // without a readable config.toml nobody knows how many they are
};

struct PageRun {
  std::string name, folder;
  Metrics metrics = {};
  std::optional<Config> config = {};  // config.toml: the run as it was described
  std::optional<Config> plan = {};    // plan.toml: the same, resolved for the ranks of its last start
  std::string timeline = {};              // plan.svg: the predicted step of a run that planned itself
  RunState state = RunState::ended;
  std::vector<std::string> notes = {};  // why something of the run is missing on the page

  std::int64_t last_step() const;  // of the records
};

// Reads a run that may be going on. A missing or unreadable config becomes a note; throws UserError where the
// metrics cannot be read.
PageRun read_page_run(const RunFiles& files);

}  // namespace shoal
