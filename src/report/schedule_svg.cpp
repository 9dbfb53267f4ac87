#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "report/schedule_picture.h"
#include "report/svg.h"

namespace shoal {
namespace {

struct Shade {
  const char* fill;
  const char* ink;
};
// Blues and oranges, which colour-blind readers can distinguish, from dark to light by chunk.
constexpr std::array kForwardShades = {Shade{"#2b6cb0", "white"}, Shade{"#6ba6dd", "#10243a"},
                                       Shade{"#a9cdee", "#10243a"}, Shade{"#d9e9f8", "#10243a"}};
constexpr std::array kBackwardShades = {Shade{"#c05621", "white"}, Shade{"#ec8f4f", "#3b1a06"},
                                        Shade{"#f6bd90", "#3b1a06"}, Shade{"#fbe0cb", "#3b1a06"}};

Shade shade_of(Action::Kind kind, int chunk) {
  const auto& shades = kind == Action::Kind::forward ? kForwardShades : kBackwardShades;
  return shades[chunk % shades.size()];
}

std::string box(double x, double y, double width, double height, std::string_view fill) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" rx=\"2\" fill=\"{}\" "
      "stroke=\"white\" stroke-width=\"1\"/>\n",
      x, y, width, height, fill);
}

class SchedulePicture {
 public:
  explicit SchedulePicture(const Schedule& schedule)
      : schedule_(schedule), line_(timeline(schedule)), bottom_(kTop + kRow * schedule.shape.stages) {
    // Wide enough for the number in a forward pass of one chunk.
    const auto digits = std::to_string(schedule.shape.micro_batches - 1).size();
    const double least = schedule.shape.chunks * (8.0 + 6.5 * static_cast<double>(digits));
    unit_ = std::max(least, 860 / line_.length);
    if (line_.length * unit_ <= kWidest) return;
    end_of_head_ = std::floor((kWidest - kGap) / 2 / unit_);
    begin_of_tail_ = line_.length - end_of_head_;
  }

  std::string draw() const {
    const double width = std::max(at(line_.length) + kMargin, 640.0), height = bottom_ + 54;
    return svg_head(width, height) + heading() + legend() + rows() + axis() + "</svg>\n";
  }

 private:
  static constexpr double kLegend = 84, kLeft = 84, kTop = 112, kRow = 38,
                          kCell = 28;  // heights of a row and of its passes
  static constexpr double kMargin = 28, kWidest = 1400, kGap = 48;
  static constexpr const char* kIdle = "#e9ecef";

  // Leaves out the middle of a long step.
  bool cut() const { return begin_of_tail_ > end_of_head_; }
  double at(double time) const {
    return kLeft + (cut() && time >= begin_of_tail_
                        ? end_of_head_ * unit_ + kGap + (time - begin_of_tail_) * unit_
                        : time * unit_);
  }

  std::string heading() const {
    return svg_text(kMargin, 34, "class=\"title\"", schedule_title(schedule_)) +
           svg_text(kMargin, 54, "class=\"faint\"",
                    fmt::format("ranks wait {:.1f} % of the step; theory: {}", 100 * line_.bubble,
                                theory_of_bubble(schedule_.shape))) +
           svg_text(kMargin, 70, "class=\"faint\"",
                    "stages of equal cost; a backward pass takes twice as long as a forward pass" +
                        (cut() ? fmt::format("; the middle, {:.0f} % of the step, is left out",
                                             100 * (begin_of_tail_ - end_of_head_) / line_.length)
                               : ""));
  }

  // The shades of all chunks, side by side, for each kind of pass.
  std::string legend() const {
    std::string svg;
    double x = kMargin;
    const auto entry = [&](std::string_view fill, std::string_view name) {
      svg += box(x, kLegend, 16, 14, fill);
      x += 19;
      if (name.empty()) return;
      svg += svg_text(x + 3, kLegend + 11.5, "class=\"faint\"", name);
      x += 3 + 6.6 * static_cast<double>(name.size()) + 16;
    };
    const int chunks = schedule_.shape.chunks;
    for (const auto& [kind, name] :
         {std::pair(Action::Kind::forward, "forward"), {Action::Kind::backward, "backward"}}) {
      const int shades = std::min(chunks, static_cast<int>(kForwardShades.size()));
      for (int chunk = 0; chunk < shades; ++chunk) {
        const bool last = chunk + 1 == shades;
        entry(shade_of(kind, chunk).fill,
              last ? chunks > 1
                         ? fmt::format("{}, chunks a to {}", name, static_cast<char>('a' + (chunks - 1) % 26))
                         : name
                   : "");
      }
    }
    entry(kIdle, "waiting");
    return svg;
  }

  std::string pass(int rank, const Timeline::Span& span, double top, double middle) const {
    const auto& [action, begin, end] = span;
    const auto [fill, ink] = shade_of(action.kind, action.chunk);
    std::string boxes;
    for (const auto& part : parts()) {
      const double from = std::max(begin, part.first), to = std::min(end, part.second);
      if (to > from) boxes += box(at(from), top, (to - from) * unit_, kCell, fill);
      if (from != begin || to != end) continue;
      boxes += svg_text(at(begin) + (end - begin) * unit_ / 2, middle,
                        fmt::format("class=\"cell\" text-anchor=\"middle\" style=\"fill:{}\"", ink),
                        std::to_string(action.micro_batch));
    }
    if (boxes.empty()) return "";
    return fmt::format("<g><title>rank {}: {}, {:.4g} to {:.4g}</title>\n{}</g>\n", rank, describe(action),
                       begin, end, boxes);
  }

  std::string rows() const {
    std::string svg;
    for (int rank = 0; rank < schedule_.shape.stages; ++rank) {
      const double top = kTop + kRow * rank + (kRow - kCell) / 2, middle = top + kCell / 2 + 4.2;
      svg += svg_text(kLeft - 12, middle, "class=\"rank\" text-anchor=\"end\"", fmt::format("rank {}", rank));
      for (const auto& [begin, end] : parts())
        svg += box(at(begin), top, (end - begin) * unit_, kCell, kIdle);
      if (cut())
        svg += svg_text(at(end_of_head_) + kGap / 2, middle, "class=\"faint\" text-anchor=\"middle\"", "...");
      for (const auto& span : line_.ranks[rank]) svg += pass(rank, span, top, middle);
    }
    return svg;
  }

  // The drawn intervals of time.
  std::vector<std::pair<double, double>> parts() const {
    if (!cut()) return {{0, line_.length}};
    return {{0, end_of_head_}, {begin_of_tail_, line_.length}};
  }

  // The unit of time is a rank's forward pass of all its chunks. Ticks are far enough apart for their
  // numbers.
  std::string axis() const {
    std::string svg;
    for (const auto& [begin, end] : parts()) {
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#9aa0a6\"/>\n", at(begin), bottom_ + 4,
                         at(begin) + (end - begin) * unit_);
    }
    double step = 1;
    for (int i = 0; step * unit_ < 34; ++i) step *= i % 3 == 1 ? 2.5 : 2;  // 1, 2, 5, 10, ...
    for (double time = 0; time <= line_.length + 1e-9; time += step) {
      if (time > end_of_head_ && time < begin_of_tail_) continue;
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}v4\" stroke=\"#9aa0a6\"/>\n", at(time), bottom_ + 4);
      svg += svg_text(at(time), bottom_ + 21, "class=\"faint\" text-anchor=\"middle\"",
                      fmt::format("{:g}", time));
    }
    return svg + svg_text((kLeft + at(line_.length)) / 2, bottom_ + 40,
                          "class=\"faint\" text-anchor=\"middle\"", "time, in forward passes of a stage");
  }

  const Schedule& schedule_;
  Timeline line_;
  double bottom_;
  double unit_ = 0;                             // pixels per unit of time
  double end_of_head_ = 0, begin_of_tail_ = 0;  // the time between them is left out
};

}  // namespace

std::string schedule_svg(const Schedule& schedule) { return SchedulePicture(schedule).draw(); }

std::string schedule_title(const Schedule& schedule) {
  const auto& [stages, chunks, micro_batches] = schedule.shape;
  const auto count = [](int n, std::string_view noun) {
    return fmt::format("{} {}{}", n, noun, n == 1 ? "" : noun.ends_with("h") ? "es" : "s");
  };
  return fmt::format("{} on {}{}, {}", scheme_of(schedule.kind).title, count(stages, "rank"),
                     chunks > 1 ? " of " + count(chunks, "chunk") : "", count(micro_batches, "micro-batch"));
}

std::string theory_of_bubble(const PipelineShape& shape) {
  const auto& [stages, chunks, micro_batches] = shape;
  return fmt::format("(P - 1) / ({}M + P - 1) = {:.1f} %{}", chunks > 1 ? "v " : "",
                     100 * (stages - 1.0) / (chunks * micro_batches + stages - 1.0),
                     chunks > 1 && micro_batches % stages != 0
                         ? fmt::format(" if M were a multiple of P = {}", stages)
                         : "");
}

}  // namespace shoal
