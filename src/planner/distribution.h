// Random quantities as a user writes them down, for predictions:
//
//   100                            a number, in the base unit, or with one: 0.5s
//   normal(MEAN, SD)  uniform(LOW, HIGH)  exp(MEAN)  lognormal(MEDIAN, SIGMA)
//   mix(0.99: 100, 0.01: 400)      one of several, each with its probability
//   each(DIST)                     drawn once for each worker (or host), not at every step
//   at(3: 400, 100)                the first for worker (or host) 3, the other for all others
//   DIST + DIST, DIST * DIST, (DIST)
//
// Draws are addressed by (seed, what it is for, who, step): the same in any order and on any machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace shoal {

// Suffixes of numbers and what they multiply by.
using Units = std::vector<std::pair<std::string_view, double>>;
Units time_units();       // base ms: us, ms, s
Units bandwidth_units();  // base Mbit/s: kbit, mbit, gbit

class Distribution {
 public:
  Distribution(double number);  // NOLINT(google-explicit-constructor): a number is one
  // `purpose` tells quantities apart that are drawn for the same who and step. Throws UserError with the
  // place in the text.
  Distribution(std::string_view text, const Units& units, std::uint32_t purpose);

  double draw(PhiloxKey key, int who, std::int64_t step) const;
  bool varies() const;  // from step to step

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
    double value = 0, spread = 0;                  // the number, or the parameters of a distribution; at: who
    std::vector<std::pair<double, int>> children;  // probability (mix), node
  };
  double draw(int node, PhiloxKey key, std::uint32_t who, std::uint32_t step) const;
  bool varies(int node) const;

  std::vector<Node> nodes_;
  int root_ = 0;
  std::uint32_t purpose_ = 0;
};

}  // namespace shoal
