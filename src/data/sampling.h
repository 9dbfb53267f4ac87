// The ways to draw training sequences.
#pragma once

#include <cstdint>

namespace shoal {

enum class Sampling : std::uint8_t {
  random,  // windows that start anywhere, with replacement, as nanoGPT
  epochs,  // windows at a fixed stride, each once per epoch, in another order every epoch
};

}  // namespace shoal
