// Tells a loss spike from noise: how many standard deviations a loss stands above the mean of a window of
// earlier ones.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace shoal {

class SpikeDetector {
 public:
  // zscore 0 is off: nothing is a spike and no window is kept.
  SpikeDetector(double zscore, int window, std::vector<double> losses = {})
      : limit_(zscore), window_(static_cast<std::size_t>(window)), losses_(std::move(losses)) {
    if (losses_.size() > window_) losses_.erase(losses_.begin(), losses_.end() - window);
  }

  // The z-score of a loss against the window; 0 until the window is full.
  double zscore(double loss) const {
    if (!active() || losses_.size() < window_) return 0;
    double mean = 0, square = 0;
    for (double x : losses_) mean += x;
    mean /= static_cast<double>(losses_.size());
    for (double x : losses_) square += (x - mean) * (x - mean);
    const double deviation = std::sqrt(square / static_cast<double>(losses_.size()));
    return deviation > 0 ? (loss - mean) / deviation : 0;
  }
  bool active() const { return limit_ > 0; }
  bool is_spike(double loss) const { return active() && zscore(loss) > limit_; }

  // Spikes are not added, so that they do not hide the next one.
  void add(double loss) {
    if (!active()) return;
    losses_.push_back(loss);
    if (losses_.size() > window_) losses_.erase(losses_.begin());
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  double limit_;
  std::size_t window_;
  std::vector<double> losses_;  // oldest first
};

}  // namespace shoal
