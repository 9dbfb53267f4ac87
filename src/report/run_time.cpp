#include "report/run_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.h"

namespace shoal {
namespace {

constexpr double kMinute = 60, kHour = 3600, kDay = 86400;

// Rounded to a multiple of `step`: 20, 25, 1,400.
std::int64_t rounded(double value) {
  const double digits = std::floor(std::log10(std::max(value, 1.0)));
  const double unit = std::pow(10.0, std::max(digits - 1, 0.0));
  return std::llround(std::round(value / unit) * unit);
}

std::string count(double value, const char* noun) {
  const auto number = std::max<std::int64_t>(rounded(value), 1);
  return fmt::format("about {} {}{}", with_commas(number), noun, number == 1 ? "" : "s");
}

}  // namespace

double RunWork::seconds(double per_step) const {
  return per_step * (static_cast<double>(steps) + static_cast<double>(evaluations) * evaluation_steps);
}

double RunWork::evaluation_share() const {
  const double all = seconds(1);
  return all > 0 ? 1 - static_cast<double>(steps) / all : 0;
}

RunWork work_left(const Config& config, std::int64_t done, std::int64_t train_tokens, std::int64_t val_tokens,
                  std::int64_t windows) {
  const auto& eval = config.eval;
  const auto& train = config.train;
  RunWork work{.steps = std::max<std::int64_t>(train.steps - done, 0)};
  if (eval.interval >= 0 && work.steps > 0) {
    // One per interval, counted from the run's first step, and one after the last step.
    const auto count = [&](std::int64_t samples, std::int64_t period) {
      const auto all = train.steps * samples;
      work.evaluations += all / period - done * samples / period + (all % period == 0 ? 0 : 1);
    };
    if (eval.interval > 0) count(1, eval.interval);
    if (eval.epochs > 0 && windows > 0) count(train.global_batch, eval.epochs * windows);
    if (eval.interval == 0 && eval.epochs == 0) ++work.evaluations;
    if (eval.at_start && done == 0 && (eval.interval > 0 || eval.epochs > 0)) ++work.evaluations;
  }
  const double step_tokens = static_cast<double>(train.global_batch) * config.model.block_size;
  const auto sequences = eval_sequences(config);
  const double tokens = sequences > 0 ? 2.0 * static_cast<double>(sequences) * config.model.block_size
                                      : static_cast<double>(val_tokens + std::min(train_tokens, val_tokens));
  work.evaluation_steps = tokens / step_tokens / 3;
  return work;
}

std::string about(double seconds) {
  if (seconds < 10) return "a few seconds";
  if (seconds < 100) return fmt::format("about {} seconds", std::lround(seconds / 10) * 10);
  if (seconds < 100 * kMinute) return count(seconds / kMinute, "minute");
  if (seconds < 48 * kHour) return count(seconds / kHour, "hour");
  if (seconds < 730 * kDay) return count(seconds / kDay, "day");
  return count(seconds / (365 * kDay), "year");
}

std::string run_time_text(const RunWork& work, double per_step) {
  auto text = fmt::format("{} for {} step{}", about(work.seconds(per_step)), with_commas(work.steps),
                          work.steps == 1 ? "" : "s");
  const auto share = work.evaluation_share();
  if (share >= 0.05) text += fmt::format(", {:.0f} % of it evaluations", std::round(share * 10) * 10);
  return text;
}

std::string too_long_advice(const Config& config, const RunWork& work, double per_step) {
  if (work.seconds(per_step) < kDay) return "";
  std::string text = fmt::format(
      "a step is {}. For a first result on this machine take fewer steps (train.steps), a smaller batch "
      "(train.global_batch) or a smaller model (model.preset=gpt-mini), or start from weights "
      "(init.from=hf:DIR)",
      about(per_step));
  const double evaluation = per_step * work.evaluation_steps;
  if (evaluation > 2 * kMinute) {
    text += fmt::format("; an evaluation takes {} ({} sequences of each split: eval.sequences)",
                        about(evaluation),
                        eval_sequences(config) > 0 ? with_commas(eval_sequences(config)) : "all");
  }
  return text;
}

}  // namespace shoal
