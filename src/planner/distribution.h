// Random quantities for predictions, in the notation that users write:
//
//   100                            a number in the base unit, or with a unit: 0.5s
//   normal(MEAN, SD)  uniform(LOW, HIGH)  exp(MEAN)  lognormal(MEDIAN, SIGMA)
//   mix(0.99: 100, 0.01: 400)      one of several, each with its probability
//   each(DIST)                     drawn once per worker (or host), not at every step
//   at(3: 400, 100)                the first value for worker (or host) 3, the second for all others
//   DIST + DIST, DIST * DIST, (DIST)
//
// Draws are addressed by (seed, purpose, who, step), where `who` is the worker or host. So they do not depend
// on their order or on the machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace shoal {

// Suffixes of numbers, with their factors.
using Units = std::vector<std::pair<std::string_view, double>>;
Units time_units();       // base ms: us, ms, s
Units bandwidth_units();  // base Mbit/s: kbit, mbit, gbit

class Distribution {
 public:
  Distribution(double number);  // NOLINT(google-explicit-constructor): a number is a distribution
  // `purpose` distinguishes quantities that are drawn for the same who and step. Throws UserError with the
  // position in the text.
  Distribution(std::string_view text, const Units& units, std::uint32_t purpose);

  double draw(PhiloxKey key, int who, std::int64_t step) const;
  bool varies() const;  // whether draws differ from step to step

 private:
  friend class DistributionParser;
  enum class Kind : std::uint8_t {
    number,
    sum,
    product,
    normal,
    uniform,
    exponential,
    lognormal,
    mix,
    each,
    at
  };
  struct Node {
    Kind kind = Kind::number;
    double value = 0, spread = 0;                       // a number, or a distribution's parameters; at: who
    std::vector<std::pair<double, int>> children = {};  // probability (mix), node
  };
  double draw(int node, PhiloxKey key, std::uint32_t who, std::uint32_t step) const;
  bool varies(int node) const;

  std::vector<Node> nodes_;
  int root_ = 0;
  std::uint32_t purpose_ = 0;
};

}  // namespace shoal
