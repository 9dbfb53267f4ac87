#include "train/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/log.h"
#include "core/text.h"

namespace shoal {

Console::Console(std::int64_t total_steps, std::optional<double> entropy_floor)
    : total_steps_(total_steps), floor_(entropy_floor), terminal_(isatty(STDERR_FILENO) != 0) {}

void Console::step(const StepRecord& record, double seconds_left) {
  clear();
  std::string line = fmt::format("step {:>{}}/{}  loss {:.4f}", record.step,
                                 std::to_string(total_steps_).size(), total_steps_, record.loss);
  if (floor_) line += fmt::format(" (floor {:.4f})", *floor_);
  line += fmt::format("  lr {:.2e}  grad norm {:.3f}  {} tokens/s  {:.1f} ms/step", record.lr,
                      record.grad_norm, format_count(record.tokens_per_s), record.ms_per_step);
  if (record.peak_share > 0) line += fmt::format("  {:.1f} % of peak", record.peak_share * 100);
  log::info("{}  ETA {}", line, format_duration(seconds_left));
}

void Console::bar(std::int64_t step, double loss, double seconds_left) {
  if (!terminal_) return;
  constexpr int kWidth = 40;
  const double share =
      static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(total_steps_, 1));
  const auto filled = static_cast<std::size_t>(share * kWidth);
  fmt::print(stderr, "\r\033[K[{}{}] {:3.0f} %  step {}/{}  loss {:.4f}  ETA {}", std::string(filled, '='),
             std::string(kWidth - filled, ' '), share * 100, step, total_steps_, loss,
             format_duration(seconds_left));
  std::fflush(stderr);
  drawn_ = true;
}

void Console::clear() {
  if (!drawn_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace shoal
