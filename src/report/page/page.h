// One HTML page that shows runs: curves, figures, configs and plans. It needs no network and no other file.
#pragma once

#include <string>
#include <vector>

#include "report/page/run.h"

namespace shoal {

// The text of the page. With `refresh_seconds` the page loads itself again so often; 0: never.
std::string runs_page(std::vector<PageRun> runs, int refresh_seconds);

}  // namespace shoal
