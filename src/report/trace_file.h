// Writes traces in the trace event format (JSON), which Perfetto (ui.perfetto.dev) and Chrome
// (chrome://tracing) read. A rank is a process of the format, a lane is a thread; transfers, which overlap,
// are asynchronous events.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/trace.h"

namespace shoal {

struct TracedRank {
  int rank = 0;
  std::string place;  // coordinate in the mesh: "pipeline 1, data 0, tensor 1"; "" without a mesh
  std::string host;
};

// A rank's part of the file: its events, one per line, separated by commas. `seconds` converts the time of an
// event to the time of the file, which begins at 0.
std::string trace_lines(const TracedRank& rank, const std::vector<trace::Event>& events,
                        const std::function<double(double time)>& seconds);

// A trace file, which has its name once it is finished. Throws UserError when it cannot be written; the
// constructor already does so where the folder is missing or write-protected.
class TraceFile {
 public:
  explicit TraceFile(std::filesystem::path path);

  void add(std::string_view lines);
  // `facts`: a JSON object about the whole trace.
  void finish(std::string_view facts);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  StagedFile file_;
  bool empty_ = true;
};

}  // namespace shoal
