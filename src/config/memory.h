// What a run needs, from the same code that will take it: for `shoal size`, and to refuse a run that cannot
// fit before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/plan.h"

namespace shoal {

// The ranks of a run, and where they are.
struct RankPlaces {
  int all = 1;
  int here = 1;         // on one host
  bool threads = true;  // those on a host are threads of one process

  static RankPlaces as_threads(int ranks) { return {.all = ranks, .here = ranks}; }
  static RankPlaces of(const World& world);
};

// Bytes of one rank.
struct MemoryEstimate {
  double weights = 0;       // float32 parameters
  double compute_copy = 0;  // parameters for the products, where those are others
  double gradients = 0;
  double optimizer = 0;  // its state
  double exchange = 0;   // what reductions between ranks and sums of their order need
  double streaming = 0;  // of the backend's, that what rests on the host goes through
  double on_host = 0;    // of that which rests, with a backend that has memory of its own
  double on_disk = 0;    // beside the above, in a mapped file: not in the sums below
  // Activations of one micro-batch.
  double blocks = 0;      // what blocks keep for their backward pass
  double streams = 0;     // the residual stream between blocks
  double workspace = 0;   // gradients of activations, shared by all layers
  double head = 0;        // the final norm and one chunk of logits
  double batches = 0;     // token ids: read ahead, in training and in evaluation
  double scratch = 0;     // of the backend's kernels
  double checkpoint = 0;  // the copy that is written in the background, and the writer's buffer
  double program = 0;     // the program and its libraries
  double on_gpu = 0;      // of the above, in the GPU's memory and not in the host's

  double state() const { return weights + compute_copy + gradients + optimizer + exchange + streaming; }
  double activations() const { return blocks + streams + workspace + head; }
  double total() const {
    return state() + on_host + activations() + batches + scratch + checkpoint + program;
  }
};

// The peak of a training run, on the rank at that place of the mesh. Pages of mapped files are not in it: the
// system takes them back when it needs them. The plan is for so many ranks.
MemoryEstimate estimate_memory(const RunPlan& plan, const RankPlaces& ranks, const MeshPlace& place);
// The same on the rank that needs most, of all or of each stage.
MemoryEstimate estimate_memory(const RunPlan& plan, const RankPlaces& ranks = {});
std::vector<MemoryEstimate> estimate_stages(const RunPlan& plan, const RankPlaces& ranks = {});
// Bytes of the host's memory for all ranks on a host, which are neighbours, where they need most.
double host_memory(const RunPlan& plan, const RankPlaces& ranks = {});

// Memory that this process may still take: what the system says is available, or less where a control group
// limits it. 0 when unknown.
double available_memory();

// Throws UserError, with what is needed by category, what is available and what to change, when the ranks on
// this host cannot fit.
void check_memory(const RunPlan& plan, const RankPlaces& ranks = {});

}  // namespace shoal
