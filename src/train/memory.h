// What a run needs, from the same code that will take it: for `shoal size`, and to refuse a run that cannot
// fit before anything is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "model/gpt.h"
#include "train/config.h"

namespace shoal {

// Bytes of one rank.
struct MemoryEstimate {
  double weights = 0;       // float32 parameters
  double compute_copy = 0;  // bfloat16 copy for the products
  double gradients = 0;
  double optimizer = 0;  // moments
  // Activations of one micro-batch.
  double blocks = 0;      // what blocks keep for their backward pass
  double streams = 0;     // the residual stream between blocks
  double workspace = 0;   // gradients of activations, shared by all layers
  double head = 0;        // the final norm and one chunk of logits
  double batches = 0;     // token ids: read ahead, in training and in evaluation
  double scratch = 0;     // of the backend's kernels
  double checkpoint = 0;  // the copy that is written in the background, and the writer's buffer
  double program = 0;     // the program and its libraries

  double activations() const { return blocks + streams + workspace + head; }
  double total() const {
    return weights + compute_copy + gradients + optimizer + activations() + batches + scratch + checkpoint +
           program;
  }
};

GptOptions gpt_options(const Config& config);
DType compute_dtype(const Config& config);

// The peak of a training run. Pages of the mapped token files are not in it: the system takes them back when
// it needs them.
MemoryEstimate estimate_memory(const Config& config, const GptConfig& model);

// Memory that this process may still take: what the system says is available, or less where a control group
// limits it. 0 when unknown.
double available_memory();

// Throws UserError, with what is needed by category, what is available and what to lower, when the run cannot
// fit.
void check_memory(const Config& config, const GptConfig& model);

}  // namespace shoal
