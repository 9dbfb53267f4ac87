// A scenario, from its first attempt to its last, and whether everything held.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "simulate/scenario.h"

namespace shoal::simulate {

// The data, and the undisturbed runs that all others have to end like.
class References {
 public:
  explicit References(std::filesystem::path folder);

  // The command that trains, without a layout.
  std::vector<std::string> command(const Training& training, const std::filesystem::path& folder) const;
  // The last checkpoint of the undisturbed run, which is made when it is first asked for.
  std::filesystem::path checkpoint(const Training& training);

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::filesystem::path> made_;
};

struct SeedEnd {
  std::string failure;                  // what did not hold; "" when everything did
  std::map<std::string, int> happened;  // attempts by their faults' kinds
  int attempts = 0;
};

SeedEnd run_seed(std::uint64_t seed, const Scenario& scenario, References& references,
                 const std::filesystem::path& folder, bool trace);

}  // namespace shoal::simulate
