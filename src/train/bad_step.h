// A step whose loss or gradient is not finite, or whose loss is a spike, in words for the user.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "config/config.h"

namespace shoal {

struct BadStep {
  std::int64_t step = 0;           // counted from 1
  int worker = 0, workers = 1;     // the worker that made it, and their number
  std::string why;                 // "the loss is not finite"
  std::span<const double> losses;  // summed losses of the worker's micro-batches
  std::string tensor;              // the first that is not finite, or ""

  // Parameters are beyond help; a gradient is not.
  bool bad_parameters() const;
  // "step 3: the loss is not finite; micro-batch 2 of 4 (samples 2 to 3, loss nan); first tensor ..."
  std::string describe(const Config& config) const;
};

// Whether a tensor that DataEngine::first_bad_tensor named is a gradient.
bool is_gradient(const std::string& tensor);

}  // namespace shoal
