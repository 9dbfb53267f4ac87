// The tables of the page of runs: keys, and the plans of the runs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "report/page/run.h"

namespace shoal {

// {"columns": [...], "rows": [{"key", "meaning", "values": [...]}]}: the keys of config.toml that are not the
// same in all runs; of a single run the keys that are not at their defaults. run.name is left out. A run
// without a config has nulls.
nlohmann::ordered_json differences_json(std::span<const PageRun> runs);

// {"rows": [{"key", "values": [...]}], "schedules": [{"run", "svg"}]}: the plans of the runs in words, and a
// pipeline's schedule as a picture. A plan that cannot be made adds a note to its run.
nlohmann::ordered_json plans_json(std::span<PageRun> runs);

}  // namespace shoal
