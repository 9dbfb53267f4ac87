// Traces some steps of a training run on all ranks, and writes them into one file (docs/trace.md).
#pragma once

#include <memory>
#include <string>

#include "comm/world.h"

namespace shoal {

struct TraceOptions {
  std::string file;  // "": no trace
  int steps = 10;    // number of steps, from the second on: the first one touches memory and makes kernels
};

// Every rank has a tracer. It records the spans (core/trace.h) of the thread that constructed it.
class Tracer {
 public:
  // Collective. Throws UserError, on all ranks, when the file cannot be created.
  Tracer(const TraceOptions& options, World& world);
  // When an exception unwinds during traced steps, rank 0 writes its own part of the trace.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // The world that the run must use: its collectives are recorded as events.
  World& world();
  bool traces() const;
  // Sets this rank's coordinate in the mesh: "pipeline 1, data 0, tensor 1".
  void set_place(std::string place);

  // Collective; call it before every step. Starts and ends the trace. Writes the file one step after the last
  // traced one, when all its transfers have ended. Warns where the file cannot be written.
  void begin_step();
  // Collective; call it when the run has ended, complete or interrupted. Writes the file if begin_step() has
  // not.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
