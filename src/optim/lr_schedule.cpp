#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shoal {

double LrSchedule::at(std::int64_t done) const {
  if (done < warmup_steps) {
    const auto steps = static_cast<double>(warmup_steps);
    // the line is met at zero this many steps before the first
    const double ahead = warmup_start == 0 ? 1 : warmup_start * steps / (1 - warmup_start);
    return peak * (static_cast<double>(done) + ahead) / (steps + ahead);
  }
  const auto progress = [&](std::int64_t begin, std::int64_t end) {
    if (done >= end) return 1.0;
    return std::max(0.0, static_cast<double>(done - begin) / static_cast<double>(end - begin));
  };
  switch (shape) {
    case LrShape::constant:
      return peak;
    case LrShape::cosine:
      return minimum +
             0.5 * (peak - minimum) * (1 + std::cos(std::numbers::pi * progress(warmup_steps, decay_steps)));
    case LrShape::linear:
      return peak + (minimum - peak) * progress(warmup_steps, decay_steps);
    case LrShape::wsd:
      return peak + (minimum - peak) * progress(total_steps - decay_steps, total_steps);
  }
  return peak;
}

}  // namespace shoal
