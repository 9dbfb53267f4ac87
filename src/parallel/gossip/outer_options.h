// The settings of an outer optimizer (outer_optimizer.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal {

struct OuterOptions {
  std::int64_t interval = 0;  // steps
  double lr = 0.7, momentum = 0.9;
  bool nesterov = true;
  bool operator==(const OuterOptions&) const = default;
};

// The tensors that it keeps beside each parameter: the model of the last time, and the momentum of its
// movement.
inline constexpr std::string_view kOuterStates[] = {"outer", "outer_m"};

}  // namespace shoal
