// Draws one step of a trace: ranks as rows, time to the right.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shoal {

// Times are seconds since the first rank began the step.
struct TraceBar {
  std::string category, name, micro_batch;
  double begin = 0, end = 0;
};
struct TraceRow {
  std::string rank, place;        // "rank 3", "pipeline 1, data 0, tensor 1"
  std::vector<TraceBar> compute;  // outer bars before the bars nested in them
  std::vector<TraceBar> waits;
};
struct TraceStep {
  std::string name;     // "step 12"
  std::string heading;  // of the picture; empty: "Step 12 as it was"
  double seconds = 0;
  std::vector<TraceRow> rows;
};

// Reads a step of a file that shoal train --trace wrote; 0 means its first step. Throws UserError when it is
// not such a file, or does not contain the step.
TraceStep read_trace_step(const std::filesystem::path& path, std::int64_t step);

// A complete SVG document.
std::string trace_svg(const TraceStep& step);

}  // namespace shoal
