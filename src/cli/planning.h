// Planning as `shoal plan` and `shoal train parallel.plan=auto` share it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "planner/search.h"

namespace shoal::cli {

// Logs what is measured.
void tell_measurement(const std::string& what);
// This machine; tells on standard error what it measures. Throws UserError for GPUs, which are not measured.
std::unique_ptr<Machine> measured_machine(int ranks, bool quiet = false);
// The cluster of a file, for a config of any backend.
std::unique_ptr<Machine> described_machine(const std::string& file, Config& config);

// Throws UserError, with what would help, when no plan fits.
void require_plan(const SearchResult& result, int ranks);
// The gain of the fastest plan over the next and over plain data parallelism, and the term that gains most.
std::vector<std::string> reasons_for_best(const SearchResult& result);

// Plans a run for --ranks `asked`, threads of this process, and logs the plan in three lines: layout, reason,
// prediction. Throws UserError under mpirun, and for GPUs, which are not measured.
RankedPlan plan_run(Config config, int asked);

}  // namespace shoal::cli
