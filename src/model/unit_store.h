// The owner of the parameters, as the model sees it. The data-parallel engine implements it: with replicated
// parameters it hands out views, with sharded ones it gathers before use and reduces after it.
#pragma once

#include <span>

#include "model/unit.h"

namespace shoal {

class UnitStore {
 public:
  virtual ~UnitStore() = default;

  // All units of the model; those that this rank has no part of are without parameters.
  virtual const std::vector<UnitSpec>& units() const = 0;

  // The unit's parameters in the compute type, ready for use until release.
  virtual UnitView weights(int unit) = 0;
  virtual void release(int unit) = 0;

  // The unit's gradients of this micro-batch, to be added to; empty where the unit is not trained.
  // `products` are ranges of the flat buffer, in order, that a product can set as well. Where nothing has
  // been added yet, they are not made zero, and the view is `unset`.
  virtual UnitView gradients(int unit, std::span<const ElementRange> products) = 0;
  // The embedding's gradients, to whose matrix the head adds the gradient of its own use.
  virtual UnitView tied_gradients(std::span<const ElementRange> products) = 0;
  // Tells that the unit's last gradient of this micro-batch has been added.
  virtual void gradients_ready(int unit) = 0;
};

}  // namespace shoal
