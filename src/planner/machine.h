// Prices of a step's parts on a machine: one that is measured here (measured_machine.h), or one that is only
// described (described_machine.h).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "ops/dry/tape_backend.h"
#include "planner/sample_step.h"

namespace shoal {

// A collective, or a message, of a group whose members are `stride` ranks apart.
struct GroupCall {
  enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, message };
  Kind kind = Kind::all_reduce;
  double bytes = 0;  // of the whole tensor: of an all-gather its output, else its input
  int ranks = 1, stride = 1;
  int world = 0;  // all ranks, of which every ranks * stride neighbours make such groups; 0: there is but one
};

// A value for each part of each pass of a sample.
template <typename T>
struct PerPart {
  std::array<std::array<T, kStepParts>, kSamplePasses> values{};
  T& at(int pass, StepPart part) {
    return values[static_cast<std::size_t>(pass)][static_cast<std::size_t>(part)];
  }
  const T& at(int pass, StepPart part) const {
    return values[static_cast<std::size_t>(pass)][static_cast<std::size_t>(part)];
  }
};

// The kernels of a rank's sample.
struct SampleKernels {
  PerPart<std::vector<Kernel>> parts;
  std::vector<Kernel> update;
  std::int64_t updated = 0;  // elements
};

// Seconds of a rank's own work in its sample, without communication.
struct SampleTimes {
  PerPart<double> parts;
  double update = 0;  // of one element
};

// Trials of a training step.
struct Trials {
  double seconds = 0;  // of a typical one
  int count = 0;       // 0: none was made
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::string name() const = 0;
  virtual SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) = 0;
  virtual double seconds(const GroupCall& call) = 0;
  // The part of a call's seconds in which its group does not keep the link busy, so that calls which are
  // queued behind it may go on.
  virtual double delay(const GroupCall&) { return 0; }
  // Whether times() answers at once, or has the time to measure them.
  virtual bool has_times(const RunPlan&) { return true; }
  // Whether times are measured when they are asked for, which takes seconds.
  virtual bool measures() const { return false; }
  // The first `most` trials of a whole training step, which are made here where fewer are known.
  virtual Trials try_step(const RunPlan& /*plan*/, int /*most*/) { return {}; }

  // Ranks are threads that share this many cores, `threads_of` each; 0: every rank has a device of its own.
  virtual int shared_cores() const { return 0; }
  virtual int threads_of(const RunPlan&) const { return 1; }
  // Whether collectives of gradients and parameters go on while kernels run.
  virtual bool overlaps() const = 0;
  virtual int ranks_per_host() const = 0;
  // Bytes that a rank may take: its share of the host's memory, or of its device.
  virtual double memory_of_rank() const = 0;
};

}  // namespace shoal
