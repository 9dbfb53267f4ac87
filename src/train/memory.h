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
  double optimizer = 0;    // moments
  double activations = 0;  // of one micro-batch, with the head's chunk of logits
  double snapshot = 0;     // host copy from which a checkpoint is written in the background
  double program = 0;      // the program, its libraries and their scratch
  double total() const {
    return weights + compute_copy + gradients + optimizer + activations + snapshot + program;
  }
};

GptOptions gpt_options(const Config& config);
DType compute_dtype(const Config& config);

MemoryEstimate estimate_memory(const Config& config, const GptConfig& model);

// Memory that this process may still take: what the system says is available, or less where a control group
// limits it. 0 when unknown.
double available_memory();

// Throws UserError, with what is needed by category, what is available and what to lower, when the run cannot
// fit.
void check_memory(const Config& config, const GptConfig& model);

}  // namespace shoal
