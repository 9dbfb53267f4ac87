// Runs as they are named on a command line: by their folder, or by their metrics.jsonl.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace shoal {

struct RunFiles {
  std::string name;  // the folder's name; the whole argument where two runs have the same
  std::filesystem::path folder;
  std::filesystem::path metrics;  // exists
};

// Throws UserError for a run that is not there, with the nearest name beside it, or has no metrics.jsonl.
std::vector<RunFiles> find_runs(std::span<const std::string> arguments);

}  // namespace shoal
