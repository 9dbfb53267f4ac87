// What the model asks of whoever owns its parameters. A data-parallel engine implements it: replicated ones
// hand out views, sharded ones gather before use and reduce after it. The model does not know which.
#pragma once

#include "model/unit.h"

namespace shoal {

class UnitStore {
 public:
  virtual ~UnitStore() = default;

  // The unit's parameters in the compute type, ready for use until release.
  virtual UnitView weights(int unit) = 0;
  virtual void release(int unit) = 0;

  // The unit's float32 gradients of this micro-batch, to be added to.
  virtual UnitView gradients(int unit) = 0;
  // Where the head adds the gradient of its use of the embedding's matrix, [V, C] padded.
  virtual Tensor tied_gradient() = 0;
  // The unit's last gradient of this micro-batch has been added.
  virtual void gradients_ready(int unit) = 0;
};

}  // namespace shoal
