#include "train/time_estimate.h"

#include "core/log.h"

namespace shoal {

void TimeEstimate::guess(const Config& config, const RunWork& left, double step_flops, double peak_flops) {
  if (peak_flops <= 0) return;
  constexpr double kUsualShare = 0.4;  // of the peak
  const double per_step = step_flops / (kUsualShare * peak_flops);
  log::info("time: {}, guessed from the FLOPs", run_time_text(left, per_step));
  if (const auto advice = too_long_advice(config, left, per_step); !advice.empty()) log::warn("{}", advice);
}

bool TimeEstimate::count_step(double seconds) {
  constexpr std::int64_t kFew = 3, kEnough = 20;
  constexpr double kSeconds = 1;
  if (timed_ >= kEnough) return false;
  if (++timed_ == 0) return false;
  seconds_ += seconds;
  if (timed_ < kEnough && (timed_ < kFew || seconds_ < kSeconds)) return false;
  seconds_per_step_ = seconds_ / static_cast<double>(timed_);
  timed_ = kEnough;
  return true;
}

}  // namespace shoal
