// Traces as files that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) read: the trace event format,
// JSON. A rank is a process of it, a lane a thread; transfers, which overlap, are its asynchronous events.
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
  std::string place;  // "pipeline 1, data 0, tensor 1"; "" where there is nothing to say
  std::string host;
};

// A rank's part of the file: its events, one per line, with commas in between. `seconds` makes times of
// events those of the file, which begins at 0.
std::string trace_lines(const TracedRank& rank, const std::vector<trace::Event>& events,
                        const std::function<double(double time)>& seconds);

// The file, written beside its place and renamed at the end. Throws UserError when that cannot be done, which
// shows at once where there is no folder or no right.
class TraceFile {
 public:
  explicit TraceFile(std::filesystem::path path);
  ~TraceFile();  // leaves nothing behind but a finished file
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  void add(std::string_view lines);
  // `facts` are a JSON object about the whole trace.
  void finish(std::string_view facts);
  const std::filesystem::path& path() const { return path_; }

 private:
  void write(std::string_view text);

  std::filesystem::path path_, part_;
  FileDescriptor file_;
  bool empty_ = true;
};

}  // namespace shoal
