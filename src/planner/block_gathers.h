// The gathers of blocks' parameters with ZeRO 3, in the order in which WeightStore makes them
// (parallel/data/weight_store.cpp).
#pragma once

#include <array>
#include <utility>

#include "model/partition.h"

namespace shoal {

// Tells which blocks' parameters a rank gathers when it uses a unit: its own, where they are in neither of
// the two buffers, and then those of the next one ahead.
class BlockGathers {
 public:
  BlockGathers(const GptConfig& model, ModelPart part) : model_(model), part_(std::move(part)) {}

  struct Needed {
    bool own = false;
    int ahead = -1;  // the one that comes next, if it is gathered
  };
  Needed use(int unit) {
    const int next = unit == 0 ? 1 : unit == last_ ? unit : unit > last_ ? unit + 1 : unit - 1;
    if (unit > 0) last_ = unit;
    const bool own = gather(unit);
    return {own, gather(next) ? next : -1};
  }

 private:
  bool gather(int unit) {
    if (unit < 1 || unit > model_.n_layer || !part_.has(model_, unit)) return false;
    return std::exchange(held_[static_cast<std::size_t>(unit % 2)], unit) != unit;
  }
  const GptConfig& model_;
  ModelPart part_;
  std::array<int, 2> held_ = {};  // none at the begin of a step: the update has changed all
  int last_ = 0;                  // the unit but the embedding that was used last
};

}  // namespace shoal
