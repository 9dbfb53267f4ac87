// Estimates the memory of a run, with the code that will allocate it: for `shoal size`, and to refuse a run
// that cannot fit before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/plan.h"

namespace shoal {

// The number of ranks of a run, and their distribution over hosts.
struct RankCounts {
  int world_size = 1;
  int local_size = 1;   // ranks on this host
  bool threads = true;  // the ranks on a host are threads of one process
  int cores = 0;        // of a rank; 0: its share of this process's

  static RankCounts as_threads(int ranks) { return {.world_size = ranks, .local_size = ranks}; }
  static RankCounts of(const World& world);
};

// Bytes of one rank.
struct MemoryEstimate {
  double weights = 0;       // float32 parameters
  double compute_copy = 0;  // parameters in the type of the products, where it is not float32
  double gradients = 0;
  double optimizer = 0;  // the optimizer's state
  double exchange = 0;   // buffers of reductions between ranks, and of sums in a fixed order
  double streaming = 0;  // buffers on the backend that offloaded state passes through
  double on_host = 0;    // offloaded state in host memory, where the backend has memory of its own
  double on_disk = 0;    // offloaded state in mapped files; not included in the sums below
  // Activations of one micro-batch.
  double blocks = 0;      // activations that blocks keep for their backward pass
  double streams = 0;     // the residual stream between blocks
  double workspace = 0;   // gradients of activations, shared by all layers
  double head = 0;        // the final norm and one chunk of logits
  double texts = 0;       // caches and activations of eval.samples
  double batches = 0;     // token ids, read ahead, for training and evaluation
  double scratch = 0;     // scratch memory of the backend's kernels
  double checkpoint = 0;  // the copy that is written in the background, and the writer's buffer
  double in_memory = 0;   // checkpoints in memory, copies of another host's, and of a GPU's state on its way
  double cuda = 0;        // CUDA's own on the GPU: its context, and the code of kernels and libraries
  double program = 0;     // the program and its libraries
  double threads = 0;     // stacks and heaps of the rank's threads
  double on_gpu = 0;      // the part of all the above that is in GPU memory

  double state() const { return weights + compute_copy + gradients + optimizer + exchange + streaming; }
  double activations() const { return blocks + streams + workspace + head + texts; }
  double total() const {
    return state() + on_host + activations() + batches + scratch + checkpoint + in_memory + cuda + program +
           threads;
  }
  // On the GPU, or without one all of it.
  double of_device() const { return on_gpu > 0 ? on_gpu : total(); }
};

// The peak memory of a training run on the rank at `coordinate` in the mesh. Excludes pages of mapped files,
// which the system reclaims when it needs them. The plan must be for ranks.world_size ranks.
MemoryEstimate estimate_memory(const RunPlan& plan, const RankCounts& ranks,
                               const MeshCoordinate& coordinate);
// The estimate of the rank that needs most, over all ranks or per stage.
MemoryEstimate estimate_memory(const RunPlan& plan, const RankCounts& ranks = {});
std::vector<MemoryEstimate> estimate_stages(const RunPlan& plan, const RankCounts& ranks = {});
// Bytes of host memory of all ranks on one host (neighbouring ranks), for the host that needs most.
double host_memory(const RunPlan& plan, const RankCounts& ranks = {});

// Bytes that this process may still allocate: the system's available memory, or less under a control group's
// limit. 0 when unknown.
double available_memory();

// The most bytes that this process has had in memory so far.
double peak_memory();

// Whether the ranks on this host fit into its memory, once their backends are open. `freed`: bytes in use now
// that will be free by then.
bool fits_host(const RunPlan& plan, const RankCounts& ranks, double freed = 0);
// The same, but throws UserError where they do not; the message has the memory per category, the available
// memory, and changes that help.
void check_memory(const RunPlan& plan, const RankCounts& ranks = {}, double freed = 0);

}  // namespace shoal
