// The exchanges of gossip. A bucket of a worker's parameters travels from its update until the next one,
// which starts from the mean of the group. One copy of the parameters becomes the sum over the group.
#pragma once

#include <memory>
#include <vector>

#include "parallel/data/weight_store.h"
#include "parallel/gossip/topology.h"

namespace shoal {

// Neighbouring units whose parameters travel together. A backward pass ends with the first of them.
struct Bucket {
  int first = 0, last = 0;
};
// In the order in which a backward pass is done with them. A bucket closes at `bytes` of float32 parameters
// on this rank; a larger unit is a bucket, and so is the embedding where another stage has the head.
std::vector<Bucket> make_buckets(const ShardPlan& plan, double bytes);

class Mixer {
 public:
  // Collective over `peers`; all must outlive the mixer. `copy` f32 [total / shards].
  Mixer(StateStream& stream, Communicator& peers, const Topology& topology, const ShardPlan& plan,
        std::vector<Bucket> buckets, WeightStore& weights, const Tensor& copy);

  // All workers hold the same from here on: there is nothing to average until they have been updated.
  void set_equal() { reset(true); }
  // They may not: the next step starts what it needs.
  void set_different() { reset(false); }
  bool equal() const { return equal_; }

  // Step `step` averages in round step mod period. The workers differ from here on, on every rank alike.
  void begin_step(std::int64_t step);
  // Waits for the bucket's exchange; its master weights become the group's mean.
  void mix(const Bucket& bucket);
  // The bucket has been updated: starts its exchange for the next step.
  void start(const Bucket& bucket) { start(bucket, step_ + 1); }

 private:
  struct Exchange {
    Request request;
    int members = 1;
  };
  void reset(bool equal);
  void start(const Bucket& bucket, std::int64_t step);
  // Their part of the copy.
  Tensor copy_of(const Bucket& units) const;
  Exchange& exchange(const Bucket& bucket) { return exchanges_[static_cast<std::size_t>(bucket.first)]; }

  StateStream& stream_;
  const ShardPlan& plan_;
  WeightStore& weights_;
  Tensor copy_;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<Communicator>> rounds_;  // this worker's group in each
  std::vector<Exchange> exchanges_;                    // by the bucket's first unit
  bool equal_ = true, started_ = true;
  std::int64_t step_ = 0;
};

}  // namespace shoal
