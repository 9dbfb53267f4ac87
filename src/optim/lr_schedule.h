// Learning-rate schedules: pure functions of the number of updates done.
#pragma once

#include <cstdint>

namespace shoal {

enum class LrShape : std::uint8_t { cosine, linear, constant, wsd };

struct LrSchedule {
  LrShape shape = LrShape::cosine;
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup_steps = 0;
  double warmup_start = 0;  // share of the peak in [0, 1); 0: 1 / (warmup_steps + 1)
  std::int64_t decay_steps =
      0;  // the step at which the minimum is reached; for wsd how many steps the decay takes
  std::int64_t total_steps = 0;  // of the run

  // The rate of the update that follows `done` updates.
  // Warmup rises linearly over warmup_steps: peak * (s + (1 - s) * done / warmup) with s = warmup_start.
  // s = 0 stands for 1 / (warmup + 1), which is nanoGPT's (done + 1) / (warmup + 1).
  // cosine, linear: from peak to minimum at decay_steps, then minimum. constant: peak.
  // wsd (warmup, stable, decay; Hu et al. 2024): peak until the last decay_steps, then linearly to minimum.
  double at(std::int64_t done) const;
};

}  // namespace shoal
