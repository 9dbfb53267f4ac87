// The ways to draw training sequences.
#pragma once

#include <cstdint>

namespace shoal {

enum class Sampling : std::uint8_t {
  random,  // windows that start anywhere, with replacement, as in nanoGPT
  epochs,  // windows at a fixed stride, each once per epoch, in a new order every epoch
};

}  // namespace shoal
