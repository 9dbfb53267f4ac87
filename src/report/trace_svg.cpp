#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/text.h"
#include "report/svg.h"
#include "report/trace_picture.h"

namespace shoal {
namespace {

struct Look {
  std::string_view category, name;  // "": any
  const char* fill;
  const char* ink;
  const char* legend;
};
// The same colours as in the pictures of schedules.
constexpr std::array kLooks = {
    Look{"micro-batch", "forward", "#2b6cb0", "white", "forward"},
    Look{"micro-batch", "backward", "#c05621", "white", "backward"},
    Look{"optimizer", "", "#2f855a", "white", "optimizer"},
    Look{"data", "", "#b7791f", "white", "waiting for data"},
};
class TracePicture {
 public:
  explicit TracePicture(const TraceStep& step)
      : step_(step),
        scale_((kWidth - kLeft - kMargin) / std::max(step.seconds, 1e-9)),
        bottom_(kTop + kRow * static_cast<double>(step.rows.size())) {}

  std::string draw() const {
    std::string svg = svg_head(kWidth, bottom_ + 54);
    svg += svg_text(kMargin, 34, "class=\"title\"",
                    fmt::format("{}: {}",
                                step_.heading.empty() ? fmt::format("Step {} as it was", step_.name.substr(5))
                                                      : step_.heading,
                                format_duration(step_.seconds)));
    svg += svg_text(kMargin, 54, "class=\"faint\"",
                    fmt::format("ranks stood still for others for {:.1f} % of the time", 100 * waited()));
    svg += legend();
    for (std::size_t i = 0; i < step_.rows.size(); ++i) {
      svg += row(step_.rows[i], kTop + kRow * static_cast<double>(i) + (kRow - kBar - kWaitBar) / 2);
    }
    return svg + axis() + "</svg>\n";
  }

 private:
  static constexpr const char* kIdle = "#f1f3f5";
  static constexpr const char* kWait = "#6b7280";

  static constexpr double kLeft = 84, kTop = 100, kRow = 46, kBar = 28, kWaitBar = 6, kMargin = 28,
                          kWidth = 1100;
  static constexpr double kThinnest = 0.4;  // pixels; thinner bars are not drawn

  double at(double seconds) const { return kLeft + seconds * scale_; }

  double waited() const {
    double sum = 0;
    for (const auto& row : step_.rows) {
      for (const auto& wait : row.waits) sum += wait.end - wait.begin;
    }
    return sum / std::max(step_.seconds * static_cast<double>(step_.rows.size()), 1e-12);
  }

  static std::string box(double x, double y, double width, double height, std::string_view fill) {
    return fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
                       x, y, width, height, fill);
  }

  std::string legend() const {
    std::string svg;
    double x = kMargin;
    const auto entry = [&](const char* fill, std::string_view name, double height) {
      svg += box(x, 80 - height, 16, height, fill) + svg_text(x + 21, 79, "class=\"faint\"", name);
      x += 21 + 6.4 * static_cast<double>(name.size()) + 18;
    };
    for (const auto& look : kLooks) entry(look.fill, look.legend, 14);
    entry(kWait, "waiting for another rank", kWaitBar);
    return svg;
  }

  std::string bar(const TraceRow& row, const TraceBar& bar, double top, double height, const char* fill,
                  const char* ink) const {
    const double left = at(bar.begin), width = at(bar.end) - left;
    if (width < kThinnest) return "";
    std::string svg = fmt::format(
        "<g><title>{}: {}, {} to {} ms</title>\n", svg_escaped(row.rank),
        svg_escaped(bar.micro_batch.empty() ? bar.name
                                            : fmt::format("{} of micro-batch {}", bar.name, bar.micro_batch)),
        std::round(bar.begin * 1e6) / 1e3, std::round(bar.end * 1e6) / 1e3);
    svg += box(left, top, width, height, fill);
    if (!bar.micro_batch.empty() && width > 7.0 * static_cast<double>(bar.micro_batch.size()) + 4) {
      svg += svg_text(left + width / 2, top + height / 2 + 4.2,
                      fmt::format("class=\"cell\" text-anchor=\"middle\" style=\"fill:{}\"", ink),
                      bar.micro_batch);
    }
    return svg + "</g>\n";
  }

  std::string row(const TraceRow& row, double top) const {
    std::string svg = "<g>\n";
    if (!row.place.empty()) svg += fmt::format("<title>{}</title>\n", svg_escaped(row.place));
    svg += svg_text(kLeft - 12, top + kBar / 2 + 4.2, "class=\"rank\" text-anchor=\"end\"", row.rank);
    svg += "</g>\n" + box(kLeft, top, step_.seconds * scale_, kBar, kIdle);
    for (const auto& compute : row.compute) {
      for (const auto& look : kLooks) {
        if (compute.category != look.category) continue;
        if (look.name.empty() || compute.name == look.name)
          svg += bar(row, compute, top, kBar, look.fill, look.ink);
      }
      // Units are drawn as a line at their begin.
      if (compute.category == "forward" || compute.category == "backward") {
        svg += fmt::format(
            "<path d=\"M{:.2f} {:.2f}v{:.0f}\" stroke=\"white\" stroke-width=\"0.6\" opacity=\"0.5\"/>\n",
            at(compute.begin), top, kBar);
      }
    }
    for (const auto& wait : row.waits) svg += bar(row, wait, top + kBar, kWaitBar, kWait, kWait);
    return svg;
  }

  std::string axis() const {
    std::string svg = fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#9aa0a6\"/>\n", kLeft,
                                  bottom_ + 4, at(step_.seconds));
    double tick = std::pow(10, std::floor(std::log10(std::max(step_.seconds, 1e-9))));
    for (const double part : {0.5, 0.4, 0.5}) {  // a half, a fifth, a tenth
      if (step_.seconds / tick < 5) tick *= part;
    }
    for (int i = 0; i * tick <= step_.seconds * (1 + 1e-9); ++i) {
      svg += fmt::format("<path d=\"M{:.1f} {:.1f}v4\" stroke=\"#9aa0a6\"/>\n", at(i * tick), bottom_ + 4);
      svg += svg_text(at(i * tick), bottom_ + 21, "class=\"faint\" text-anchor=\"middle\"",
                      fmt::format("{:g}", i * tick * 1e3));
    }
    return svg + svg_text(at(step_.seconds / 2), bottom_ + 40, "class=\"faint\" text-anchor=\"middle\"",
                          "milliseconds");
  }

  const TraceStep& step_;
  double scale_;  // pixels per second
  double bottom_;
};

}  // namespace

std::string trace_svg(const TraceStep& step) { return TracePicture(step).draw(); }

}  // namespace shoal
