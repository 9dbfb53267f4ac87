// A cluster that is only described: kernels by a roofline, collectives by latency and bandwidth.
#pragma once

#include "config/cluster_file.h"
#include "planner/machine.h"

namespace shoal {

class DescribedMachine final : public Machine {
 public:
  explicit DescribedMachine(Cluster cluster) : cluster_(std::move(cluster)) {}

  std::string name() const override { return cluster_.name; }
  SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) override;
  double seconds(const GroupCall& call) override;
  bool overlaps() const override { return true; }
  int ranks_per_host() const override { return cluster_.devices_per_host; }
  double memory_of_rank() const override { return 0.8 * cluster_.memory; }

  double seconds(const Kernel& kernel, const RunPlan& plan) const;
  const Cluster& cluster() const { return cluster_; }

 private:
  Cluster cluster_;
};

}  // namespace shoal
