#include "core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/log.h"
#include "core/text.h"

namespace shoal {
namespace {
constexpr double kQuietSeconds = 2;  // nothing is shown for what is over sooner
constexpr int kBarWidth = 24;
}  // namespace

Progress::Progress(std::string title, double total, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (!finished_ && shown_ && terminal_) std::fputs("\n", stderr);
}

void Progress::update(double done, const std::string& note) {
  done_ = done;
  note_ = note;
  const double now = watch_.seconds();
  if (log::thread_muted() || now < kQuietSeconds || now - last_drawn_ < (terminal_ ? 0.1 : 5.0)) return;
  last_drawn_ = now;
  draw(false);
}

void Progress::clear() {
  if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
  finished_ = true;
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (shown_) draw(true);
}

void Progress::draw(bool last) {
  shown_ = true;
  const auto amount = [&](double value) {
    return unit_ == "B" ? format_bytes(value) : format_count(value) + " " + unit_;
  };
  const double elapsed = watch_.seconds();
  const double rate = (done_ - begun_at_) / std::max(elapsed, 1e-9);
  std::string line = title_ + "  ";
  if (total_ > 0 && !last) {
    const double share = std::clamp(done_ / total_, 0.0, 1.0);
    const int filled = static_cast<int>(share * kBarWidth);
    line += fmt::format("[{}{}] {:3.0f} %  ", std::string(static_cast<std::size_t>(filled), '='),
                        std::string(static_cast<std::size_t>(kBarWidth - filled), ' '), share * 100);
  }
  line += fmt::format("{}  {}/s", amount(done_), amount(rate));
  if (last) {
    line += "  in " + format_duration(elapsed);
  } else if (total_ > 0 && rate > 0) {
    line += "  ETA " + format_duration(std::max(total_ - done_, 0.0) / rate);
  }
  if (!note_.empty()) line += "  " + note_;
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ && !last ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace shoal
