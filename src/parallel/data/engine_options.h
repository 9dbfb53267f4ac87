// The options of a data-parallel engine, and the memory that an engine takes with them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

#include "model/partition.h"
#include "model/unit.h"
#include "optim/optimizer.h"
#include "parallel/gossip/outer_options.h"
#include "parallel/gossip/topology.h"

namespace shoal {

// Decentralised training (gossip): a worker computes its gradient at its own model, and applies it to the
// mean of its group's models, which have travelled since each one's last update. "From promise to practice:
// realizing high-performance decentralized training" (Wang et al. 2024).
struct GossipOptions {
  Topology topology;  // of mesh.peers()
  double bucket_bytes = 25 << 20;
  // Updates each bucket in the backward pass, after the last of its gradients, clipped by its own norm. For
  // workers of one rank, without sums of a fixed order.
  bool clip_by_bucket = false;
  bool operator==(const GossipOptions&) const = default;
};

struct EngineOptions {
  ModelPart part = {};  // which this rank has
  DType compute = DType::f32;
  OptimizerOptions optimizer = {};
  Decay decay = Decay::matrices;
  double ema = 0;        // decay of the weights' moving average, which is evaluated; 0: there is none
  double grad_clip = 0;  // of the whole model's gradient norm; 0 is off
  bool training = true;  // false: parameters only, for evaluation and sampling

  // The stage of ZeRO (Rajbhandari et al. 2020). 0: each data rank holds everything. 1: optimizer state and
  // master weights are sharded. 2: gradients, too. 3: parameters, too. Shards are distributed over groups of
  // ranks / replicate neighbouring ranks; the groups are replicas.
  int zero = 0;
  int replicate = 1;

  // The gradients of the global batch's micro-batches are added as one binary tree over their index, so that
  // every number of ranks, stage and communicator gives the same bits.
  bool layout_exact = false;
  int micro_batches = 1;  // of the global batch, over all ranks; with gossip, over those of a worker
  // The type of a rank's gradients, to which its passes add, and that in which float32 ones travel between
  // ranks. Sums over ranks are float32 always.
  DType gradients = DType::f32, reduced = DType::f32;
  DType travel() const { return gradients == DType::f32 ? reduced : gradients; }

  // The folder of a mapped file that holds the master weights, the moments and, where they are sharded, the
  // gradients; empty: they are in memory.
  std::filesystem::path offload = {};
  // The backend has memory of its own, and this state rests in the host's: in that file, or else pinned. With
  // zero = 3 this rank's part of the parameters for the products does, too.
  bool on_host = false;
  std::int64_t streamed = std::int64_t{4}
                          << 20;  // elements of a piece that goes through the backend's memory

  std::optional<GossipOptions> gossip = {};
  // Whether each bucket is clipped by its own norm, and updated in the backward pass.
  bool by_bucket() const { return gossip && gossip->clip_by_bucket; }
  // In place of the averaging of every step, if there are several workers.
  std::optional<OuterOptions> outer = {};

  bool operator==(const EngineOptions&) const = default;
};

// Bytes that the engine takes on one rank.
struct EngineMemory {
  std::size_t weights = 0;       // float32 master weights, this rank's part
  std::size_t compute_copy = 0;  // parameters for the products, where they are not the master weights
  std::size_t gradients = 0;
  std::size_t optimizer = 0;
  std::size_t exchange = 0;   // buffers of reductions and of gossip, partial sums of the layout-exact tree
  std::size_t streaming = 0;  // buffers that what rests on the host goes through
  std::size_t on_host = 0;    // beside the above, pinned in the host's memory
  std::size_t on_disk = 0;    // beside the above, in a mapped file
  std::size_t total() const { return weights + compute_copy + gradients + optimizer + exchange + streaming; }
};

}  // namespace shoal
