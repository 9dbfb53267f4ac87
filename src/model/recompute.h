// Activations that the backward pass recomputes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shoal {

// Each gives the same bits as `none`. Recomputed activations lie in memory that all blocks share.
enum class Recompute : std::uint8_t {
  none,
  gelu,   // the MLP's activations after GELU, from those before
  light,  // and the norms' outputs, from the stream
  block,  // all of a block, from its input
};

constexpr std::string_view name_of(Recompute recompute) {
  constexpr std::string_view kNames[] = {"none", "gelu", "light", "block"};
  return kNames[static_cast<std::size_t>(recompute)];
}

}  // namespace shoal
