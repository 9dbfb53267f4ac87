// This machine, one of its GPUs, or this MPI job: parts of steps and collectives are measured when a plan
// first needs them, and kept in $XDG_CACHE_HOME/shoal/calibration for the same processor, libraries, cores
// and hosts.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "core/shared_table.h"
#include "ops/cuda/cuda.h"
#include "planner/machine.h"
#include "planner/measure.h"

namespace shoal {

struct MeasuringOptions {
  std::function<void(const std::string& what)> tell = {};  // called before each measurement
  std::filesystem::path cache;                             // empty: none
  bool again = false;                                      // measure what is in the cache anew
  double seconds = 60;                 // behind which no further part of a step is measured
  double trial_seconds = 120;          // the same of steps; more where these are long
  std::optional<CudaDevice> gpu = {};  // of the one rank, for plans with the cuda backend
};

class MeasuredMachine final : public Machine {
 public:
  // Ranks that are threads of this process.
  MeasuredMachine(int ranks, MeasuringOptions options);
  // The ranks of an MPI job. All of them make the same calls, and get the same answers.
  MeasuredMachine(World& world, MeasuringOptions options);

  std::string name() const override { return name_; }
  SampleTimes times(const RunPlan& sample, const SampleKernels& kernels) override;
  bool has_times(const RunPlan& sample) override;
  double seconds(const GroupCall& call) override;
  double delay(const GroupCall& call) override;
  bool measures() const override { return true; }
  // Ranks that are threads are tried, but not workers that gossip, nor plans that need more than
  // memory_of_rank(). Where a hundred steps of the first plan take longer than options.trial_seconds, trials
  // may do so, too, but not longer than five minutes.
  Trials try_step(const RunPlan& plan, int most) override;
  int shared_cores() const override { return world_ ? 0 : cores_; }
  int threads_of(const RunPlan& plan) const override;
  // Threads move the bytes while they wait; of an MPI job, the engine of messages does.
  bool overlaps() const override { return world_ != nullptr; }
  int ranks_per_host() const override { return ranks_per_host_; }
  double memory_of_rank() const override { return memory_; }

  // Measures every collective that groups of these ranks can need.
  void measure_collectives();
  int measured() const { return measured_; }  // measurements that the cache did not have
  bool saved() const { return saved_; }       // whether the cache has them now
  // $XDG_CACHE_HOME/shoal/calibration; its folder is created.
  static std::filesystem::path default_cache();

 private:
  // A sample that is small enough to be measured, and its name in the cache.
  struct Scaled {
    RunPlan sample;
    double scale = 1;  // of its times, to those of the sample that is wanted
    std::string key;
  };
  Scaled scaled(const RunPlan& sample) const;
  std::string name_of_step(const RunPlan& plan) const;
  using Curve = std::vector<std::pair<double, double>>;  // bytes and seconds, ascending
  const Curve& curve(GroupCall group);
  void tell(const std::string& what) const {
    if (options_.tell) options_.tell(what);
  }
  // The numbers of the cache, or those of `make`, which are added to it.
  const std::vector<double>& kept(const std::string& key, const std::function<std::vector<double>()>& make);
  void keep(const std::string& key, const std::vector<double>& numbers);
  // Rank 0's value on every rank.
  std::vector<double> agreed(std::vector<double> values) const;
  std::vector<double> find(const std::string& key) const;

  World* world_ = nullptr;  // of an MPI job
  RunRanks run_;
  int ranks_, cores_ = 1, ranks_per_host_ = 1;
  MeasuringOptions options_;
  SharedTable cache_;
  std::string name_;
  std::string key_;  // of the processor, cores, libraries and hosts
  double memory_ = 0;
  std::map<std::tuple<GroupCall::Kind, int, int>, Curve> curves_;
  std::map<std::string, std::vector<double>> kept_;
  double spent_ = 0, tried_ = 0;  // seconds of measuring parts of steps, and of trials
  double first_trial_ = 0;        // seconds of its step
  int measured_ = 0;
  bool saved_ = true;
};

}  // namespace shoal
