// The trace of a training run: of which steps, from which ranks, into which file (docs/trace.md).
#pragma once

#include <memory>
#include <string>

#include "comm/world.h"

namespace shoal {

struct TraceOptions {
  std::string file;  // "": no trace
  int steps = 10;    // from the second one on: in the first, memory is touched and kernels are made
};

// Every rank's. Its spans (core/trace.h) are recorded on the thread that made it, until it ends.
class Tracer {
 public:
  // Collective. Throws UserError, on all ranks, when the file cannot be created.
  Tracer(const TraceOptions& options, World& world);
  // On rank 0, when an exception passes while steps are traced, writes what this rank knows alone.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // What the run is to use: its collectives are events.
  World& world();
  bool traces() const;
  // Where this rank stands, for the picture: "pipeline 1, data 0, tensor 1".
  void set_place(std::string place);

  // Collective, before every step. Begins and ends the trace, and writes the file one step later, when all
  // that was under way has ended. A file that cannot be written then is a warning.
  void begin_step();
  // Collective, when the run has ended, done or interrupted: writes the file unless that has been done.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
