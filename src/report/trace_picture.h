// The picture of one step of a trace: ranks as rows, time to the right.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shoal {

// Seconds from the step's begin on the rank that came first.
struct TraceBar {
  std::string category, name, micro_batch;
  double begin = 0, end = 0;
};
struct TraceRow {
  std::string rank, place;        // "rank 3", "pipeline 1, data 0, tensor 1"
  std::vector<TraceBar> compute;  // what contains others comes before them
  std::vector<TraceBar> waits;
};
struct TraceStep {
  std::string name;  // "step 12"
  double seconds = 0;
  std::vector<TraceRow> rows;
};

// A step of a file that shoal train --trace wrote; 0 is its first. Throws UserError when it is no such file,
// or the step is not in it.
TraceStep read_trace_step(const std::filesystem::path& path, std::int64_t step);

// A whole SVG document, for a white page.
std::string trace_svg(const TraceStep& step);

}  // namespace shoal
