// This machine, its ranks being threads of one process: parts of steps and collectives are measured when a
// plan first needs them, and kept in $XDG_CACHE_HOME/shoal/calibration for the same processor, library and
// number of cores.
#pragma once

#include <functional>
#include <map>

#include "core/shared_table.h"
#include "planner/machine.h"

namespace shoal {

class MeasuredMachine final : public Machine {
 public:
  // Called before each measurement with its description.
  using Tell = std::function<void(const std::string& what)>;
  // `again` measures what is in the cache anew.
  explicit MeasuredMachine(int ranks, Tell tell = {}, std::filesystem::path cache = default_cache(),
                           bool again = false);

  std::string name() const override;
  SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) override;
  double seconds(const GroupCall& call) override;
  int shared_cores() const override { return cores_; }
  int threads_of(const RunPlan& plan) const override;
  bool overlaps() const override { return false; }  // members move the bytes while they wait
  int ranks_per_host() const override { return ranks_; }
  double memory_of_rank(int ranks) const override;

  // Measures every collective that groups of these ranks can need.
  void measure_collectives();
  int measured() const { return measured_; }  // measurements that the cache did not have
  static std::filesystem::path default_cache();

 private:
  using Curve = std::vector<std::pair<double, double>>;  // bytes and seconds, ascending
  const Curve& curve(GroupCall::Kind kind, int ranks);
  // `count` numbers of the cache, or those of `make`, which are added to it.
  const std::vector<double>& kept(const std::string& key, std::size_t count,
                                  const std::function<std::vector<double>()>& make);

  int ranks_, cores_;
  Tell tell_;
  SharedTable cache_;
  std::string machine_;  // processor, cores, libraries
  std::map<std::pair<GroupCall::Kind, int>, Curve> curves_;
  std::map<std::string, std::vector<double>> kept_;
  bool again_;
  int measured_ = 0;
};

}  // namespace shoal
