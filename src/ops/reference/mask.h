// The factor of an element under dropout: 0, or the scale of kept elements; 1 everywhere without dropout.
#pragma once

#include "ops/dropout.h"

namespace shoal::reference {

class Mask {
 public:
  explicit Mask(const Dropout& dropout) : Mask(dropout, dropout.site) {}
  Mask(const Dropout& dropout, std::uint32_t site)
      : dropout_(dropout), site_(site), key_(philox_key(dropout.seed, PhiloxStream::dropout)) {}

  // b: local sample, t: local position, column: a channel, or the position of a key.
  double operator()(std::int64_t b, std::int64_t t, std::int64_t column) const {
    if (!dropout_.active()) return 1;
    const auto bits =
        dropout_bits(key_, *dropout_.step, site_, dropout_.window.row(b, t), dropout_.first_column + column);
    return bits < dropout_.threshold() ? 0 : dropout_.scale();
  }

 private:
  Dropout dropout_;
  std::uint32_t site_;
  PhiloxKey key_;
};

}  // namespace shoal::reference
