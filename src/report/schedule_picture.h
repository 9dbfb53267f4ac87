// Draws a pipeline's schedule: ranks as rows, time to the right.
#pragma once

#include <string>

#include "parallel/pipeline/schedule.h"

namespace shoal {

// One line per rank: "|3 " is a forward and "|3===" a backward pass of micro-batch 3, "|3b" a pass of the
// rank's second chunk, and blanks are waits. Lines longer than `width` columns lose their middle, and the
// last line says so. `colour` adds the escape codes of a terminal.
std::string schedule_text(const Schedule& schedule, int width, bool colour);

// A complete SVG document. A long step loses its middle, and the heading says so.
std::string schedule_svg(const Schedule& schedule);

// "1F1B on 4 ranks, 8 micro-batches"
std::string schedule_title(const Schedule& schedule);

// The formula for the share of a step in which ranks wait: "(P - 1) / (v M + P - 1) = 11.1 %".
std::string theory_of_bubble(const PipelineShape& shape);

}  // namespace shoal
