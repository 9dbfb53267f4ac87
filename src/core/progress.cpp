#include "core/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "core/log.h"
#include "core/terminal.h"
#include "core/text.h"

namespace shoal {
namespace {

constexpr double kQuietSeconds = 2;  // nothing is shown for what is over sooner
constexpr int kWidestBar = 40, kNarrowestBar = 8;

std::string bar(double share, int width) {
  const auto filled = static_cast<std::size_t>(share * width);
  return fmt::format("[{}{}]", std::string(filled, '='),
                     std::string(static_cast<std::size_t>(width) - filled, ' '));
}

}  // namespace

std::string progress_line(std::string_view title, double share, const std::vector<std::string>& facts,
                          int columns) {
  constexpr std::string_view kGap = "  ";
  const auto append = [&](std::string& text, std::string_view part) {
    if (!text.empty() && !part.empty()) text += kGap;
    text += part;
  };
  share = std::min(share, 1.0);
  const auto percent = share < 0 ? "" : fmt::format("{:3.0f} %", share * 100);
  for (auto count = facts.size();; --count) {
    std::string behind = percent;
    for (std::size_t i = 0; i < count; ++i) append(behind, facts[i]);
    std::string line(title);
    append(line, behind);
    if (columns == 0) return line;
    int room = columns - display_width(line);
    if (room < 0 && count > 0) continue;
    if (room < 0) {
      line = cut_to_width(title, columns - display_width(behind) - (behind.empty() ? 0 : 2));
      append(line, behind);
      return cut_to_width(line, columns);
    }
    room -= static_cast<int>(kGap.size()) + 1;  // a gap, two brackets and a space in a gap's place
    if (share < 0 || room < kNarrowestBar) return line;
    line = title;
    append(line, bar(share, std::min(room, kWidestBar)) + " " + behind);
    return line;
  }
}

std::string format_rate(double per_second, std::string_view unit) {
  if (unit == "B") return format_bytes(per_second) + "/s";
  if (per_second > 0 && per_second < 1) {
    const std::size_t ending = unit.ends_with("ches") ? 2 : unit.ends_with("s") ? 1 : 0;
    return fmt::format("{}/{}", format_duration(1 / per_second), unit.substr(0, unit.size() - ending));
  }
  return fmt::format("{} {}/s",
                     per_second < 10 ? fmt::format("{:.1f}", per_second) : format_count(per_second), unit);
}

Progress::Progress(std::string title, double total, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(status_line::columns() > 0) {}

Progress::~Progress() {
  if (!finished_ && shown_) status_line::keep();
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
  if (shown_) status_line::clear();
  finished_ = true;
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (shown_) draw(true);
}

void Progress::draw(bool last) {
  shown_ = true;
  const double elapsed = watch_.seconds();
  const double rate = (done_ - begun_at_) / std::max(elapsed, 1e-9);
  std::vector<std::string> facts = {unit_ == "B" ? format_bytes(done_) : format_count(done_) + " " + unit_,
                                    format_rate(rate, unit_)};
  if (last) {
    facts.push_back("in " + format_duration(elapsed));
  } else if (total_ > 0 && rate > 0) {
    facts.push_back("ETA " + format_duration(std::max(total_ - done_, 0.0) / rate));
  }
  if (!note_.empty()) facts.push_back(note_);
  const double share = total_ > 0 && !last ? std::max(done_ / total_, 0.0) : -1;
  const auto line = progress_line(title_, share, facts, status_line::columns());
  if (terminal_) {
    status_line::draw(line);
    if (last) status_line::keep();
  } else {
    std::fputs((line + "\n").c_str(), stderr);  // which may be gone
  }
}

}  // namespace shoal
