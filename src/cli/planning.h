// Planning as `shoal plan` and `shoal train parallel.plan=auto` share it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launch/ranks.h"
#include "planner/measured_machine.h"
#include "planner/search.h"

namespace shoal::cli {

// This machine, for the ranks of a job and the backend of a config. It logs what it measures, unless `quiet`;
// `again` measures what is known too. Throws UserError for several GPUs.
std::unique_ptr<MeasuredMachine> measured_machine(const Config& config, const Job& job, bool quiet = false,
                                                  bool again = false);
// The cluster of a file, for a config of any backend.
std::unique_ptr<Machine> described_machine(const std::string& file, Config& config);

// Throws UserError, with what would help, when no plan fits.
void require_plan(const SearchResult& result, int ranks);
// The gain of the fastest plan over the next and over plain data parallelism, and the term that gains most.
std::vector<std::string> reasons_for_best(const SearchResult& result);

// Settings that keep what a run's results depend on as its last start had it, where the config leaves it
// open: the tensor ranks of an exact run's sums, and gossip's workers. None before its first checkpoint.
std::vector<std::string> settings_to_keep(const Config& config, int ranks);

// The predicted step as a picture: a rank of each stage.
std::string timeline_svg(const RankedPlan& plan);

// Plans a run for the ranks of a job, with settings_to_keep() where it goes on, and logs the plan in three
// lines: layout, reason, prediction.
RankedPlan plan_run(Config config, const Job& job);

}  // namespace shoal::cli
