// A CPU that nobody has measured, as a guess.
#pragma once

#include "planner/described_machine.h"

namespace shoal {

// Its links and its memory are the caller's.
inline Cluster typical_cpu_cluster() {
  Cluster cpu{.name = "typical CPU"};
  cpu.peak_float32 = 1e11;
  cpu.peak_bfloat16 = 2e11;
  cpu.bandwidth = 1e10;
  cpu.launch = 2e-6;
  cpu.product = cpu.attention = cpu.streaming = 1;
  return cpu;
}

// The collectives of a machine that is measured, with such kernels: for the order in which its parts of steps
// are measured.
class TypicalCpu final : public Machine {
 public:
  explicit TypicalCpu(Machine& machine) : machine_(machine), kernels_(typical_cpu_cluster()) {}
  std::string name() const override { return kernels_.name(); }
  SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) override {
    return kernels_.times(sample, kernels);
  }
  double seconds(const GroupCall& call) override { return machine_.seconds(call); }
  int shared_cores() const override { return machine_.shared_cores(); }
  int threads_of(const RunPlan& plan) const override { return machine_.threads_of(plan); }
  bool overlaps() const override { return machine_.overlaps(); }
  int ranks_per_host() const override { return machine_.ranks_per_host(); }
  double memory_of_rank() const override { return machine_.memory_of_rank(); }

 private:
  Machine& machine_;
  DescribedMachine kernels_;
};

}  // namespace shoal
