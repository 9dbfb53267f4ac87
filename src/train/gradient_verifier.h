// run.verify: finds processors and memory that err silently. In a verified step every data rank also computes
// the gradient of another one's first micro-batch, from its own copy of the parameters, and the checksums of
// both are compared before the update. The same work has the same bits on every rank, so a difference is a
// fault, never noise. "Cores that don't count" (Hochschild et al. 2021) describes such faults.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/batch_sampler.h"
#include "parallel/data/data_engine.h"
#include "train/step_batches.h"

namespace shoal {

class GradientVerifier {
 public:
  struct Options {
    std::int64_t interval = 1;  // steps
    std::uint64_t seed = 0;
    int global_batch = 1, micro_batch = 1;
    std::int64_t tokens = 1;  // of a worker's step
  };

  // Collective over the mesh. The backend, the engine, the model, the mesh and the sampler's files must
  // outlive it.
  GradientVerifier(Backend& backend, DataEngine& engine, Pipeline& model, Mesh& mesh,
                   const BatchSampler& sampler, const Options& options);

  // Before a step, which counts from 0: in a verified one computes the other rank's micro-batch. Collective
  // over the worker, as is difference().
  void begin(std::int64_t step);
  // After the step's passes: "" where gradients are equal, or the step is not verified. Otherwise the fault
  // in words, the same on every rank of the worker; the step's gradients are lost then.
  std::string difference();

 private:
  // Of the gradient of a micro-batch, in the order in which the backward pass ends tensors.
  struct Checksums {
    std::vector<std::string> tensors;  // "transformer.h.0.mlp.c_fc.weight in block.0"
    std::vector<std::uint64_t> sums;
  };
  using Sums = std::vector<std::vector<std::uint64_t>>;  // of every data rank

  int ranks() const { return mesh_.data().size(); }
  // The data rank that computes the micro-batch of `owner` too.
  int checker(int owner, int shift) const { return (owner + shift) % ranks(); }
  std::int64_t first_sample(int owner) const;  // of its first micro-batch, in the global batch
  void add(Checksums& to, const UnitView& gradient) const;
  Checksums recompute(int shift);
  Sums gather(const Checksums& mine);
  std::string describe(int owner, const Sums& own, const Sums& again);
  std::string name_micro_batch(int owner) const;
  std::string name_first(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) const;
  std::string name_model();

  Backend& backend_;
  DataEngine& engine_;
  Pipeline& model_;
  Mesh& mesh_;
  BatchSampler sampler_;
  Options options_;
  StepBatches batch_;
  MicroBatch tokens_;
  std::vector<std::int32_t> first_micro_batches_;  // of every data rank, among the worker's
  bool verifying_ = false;                         // the step under way
  std::int64_t step_ = 0;
  int shift_ = 0;
  Checksums own_, again_;  // of this rank's first micro-batch; of another rank's
};

}  // namespace shoal
