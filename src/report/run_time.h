// Estimates the time of a run, evaluations included, before its first step and again after a few steps.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace shoal {

// The remaining work of a run.
struct RunWork {
  std::int64_t steps = 0;
  std::int64_t evaluations = 0;
  // Time of one evaluation, in steps: a forward pass takes a third of the time of a step on as many tokens.
  double evaluation_steps = 0;

  double seconds(double per_step) const;
  double evaluation_share() const;  // share of the evaluations in the whole time, 0..1
};

// The work after `done` steps. config.train.steps must be resolved. `train_tokens` and `val_tokens` are the
// sizes of the splits, `windows` the number of sequences of an epoch.
RunWork work_left(const Config& config, std::int64_t done, std::int64_t train_tokens, std::int64_t val_tokens,
                  std::int64_t windows);

// "a few seconds", "about 20 seconds", "about 17 minutes", "about 3 hours", "about 12 days", "about 19
// years", with at most two digits.
std::string about(double seconds);

// "about 17 minutes for 2,000 steps, a tenth of it for evaluations".
std::string run_time_text(const RunWork& work, double per_step);

// Advice for a run of more than a day; "" for a shorter one.
std::string too_long_advice(const Config& config, const RunWork& work, double per_step);

}  // namespace shoal
