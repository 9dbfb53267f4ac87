// Pictures of a pipeline's schedule: ranks as rows, time to the right.
#pragma once

#include <string>

#include "parallel/pipeline/schedule.h"

namespace shoal {

// One line per rank: "|3 " a forward and "|3===" a backward pass of micro-batch 3, "|3b" of the rank's second
// chunk, blank where it waits. Lines that do not fit into `width` columns lose their middle, which the last
// line of the text says. `colour` paints the passes as on a terminal.
std::string schedule_text(const Schedule& schedule, int width, bool colour);

// A whole SVG document, for a white page. A long step loses its middle, which the heading says.
std::string schedule_svg(const Schedule& schedule);

// "1F1B on 4 ranks, 8 micro-batches"
std::string schedule_title(const Schedule& schedule);

// The share of the step in which ranks wait: "(P - 1) / (v M + P - 1) = 11.1 %".
std::string theory_of_bubble(const PipelineShape& shape);

}  // namespace shoal
