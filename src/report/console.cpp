#include "report/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/log.h"
#include "core/progress.h"
#include "core/terminal.h"
#include "core/text.h"

namespace shoal {
namespace {

constexpr double kBetweenDraws = 0.05;  // seconds

// Fixed notation, or an exponent for the huge values of a run that diverges.
std::string fixed_text(double value, int digits) {
  if (std::isnan(value)) return "nan";  // without a sign
  return std::abs(value) < 1e6 ? fmt::format("{:.{}f}", value, digits)
                               : fmt::format("{:.{}e}", value, digits);
}

std::string by_source(const std::vector<SourceLoss>& losses) {
  std::string text;
  for (const auto& [source, loss] : losses)
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", source, fixed_text(loss, 6));
  return text.empty() ? "" : text + ")";
}

std::string in_text(const std::optional<TextPerplexity>& text) {
  if (!text) return "";
  return fmt::format(" (per word {}, per byte {:.4f})", fixed_text(text->word, 4), text->byte);
}

}  // namespace

Console::Console(std::int64_t total_steps, std::optional<double> entropy_floor)
    : total_steps_(total_steps), floor_(entropy_floor) {}

namespace {

// A byte-level model may write what a terminal would obey.
std::string shown(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == '\x7f'; }, '?');
  return text;
}

}  // namespace

void Console::step(const StepRecord& record, double seconds_left) {
  std::string line = fmt::format("step {:>{}}/{}  loss {}", record.step, std::to_string(total_steps_).size(),
                                 total_steps_, fixed_text(record.loss, 4));
  if (floor_) line += fmt::format(" (floor {:.4f})", *floor_);
  line +=
      fmt::format("  lr {:.2e}  grad norm {}  {}  {:.1f} ms/step", record.lr, fixed_text(record.grad_norm, 3),
                  format_rate(record.tokens_per_s, "tokens"), record.ms_per_step);
  // A share above 1 means that the peak was measured on a busy machine.
  if (record.peak_share > 0 && record.peak_share <= 1)
    line += fmt::format("  {:.1f} % of peak", record.peak_share * 100);
  if (record.step < total_steps_) line += "  ETA " + format_duration(seconds_left);
  log::info("{}", line);
  drawn_at_ = -1;
}

void Console::evaluation(const EvalRecord& record, const TrainTime& time) {
  clear();
  std::string line = fmt::format("Step {}, Val loss: {}{}, Train loss: {}, Val perplexity: {}", record.step,
                                 fixed_text(record.val_loss, 6), by_source(record.val_losses),
                                 fixed_text(record.train_loss, 6), fixed_text(std::exp(record.val_loss), 4));
  line += in_text(record.val_text);
  if (record.val_accuracy) line += fmt::format(", Val accuracy: {:.2f} %", *record.val_accuracy * 100);
  for (const auto& [task, accuracy] : record.tasks)
    line += fmt::format(", {}: {:.2f} %", task, accuracy * 100);
  if (record.consensus_distance)
    line += fmt::format(", Consensus distance: {:.3e}", *record.consensus_distance);
  if (time.steps > 0) {
    line += fmt::format(", Train time: {:.3f} s ({:.3f} ms/step), Total train time: {:.3f} s", time.seconds,
                        time.seconds * 1e3 / static_cast<double>(time.steps), time.total_seconds);
  }
  log::info("{}", line);
  for (const auto& text : record.samples) log::info("Step {}, a text:\n{}", record.step, shown(text));
}

void Console::test(const TestRecord& record) {
  clear();
  log::info("Step {}, Test loss: {}{}, Test perplexity: {}{}, Test accuracy: {:.2f} %", record.step,
            fixed_text(record.loss, 6), by_source(record.losses), fixed_text(std::exp(record.loss), 4),
            in_text(record.text), record.accuracy * 100);
}

void Console::bar(std::int64_t step, double loss, double seconds_left) {
  const int columns = status_line::columns();
  const double now = watch_.seconds();
  if (columns == 0 || (drawn_at_ >= 0 && now - drawn_at_ < kBetweenDraws)) return;
  drawn_at_ = now;
  const double share =
      static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(total_steps_, 1));
  status_line::draw(progress_line("", share,
                                  {fmt::format("step {}/{}", step, total_steps_),
                                   "ETA " + format_duration(seconds_left), "loss " + fixed_text(loss, 4)},
                                  columns));
}

void Console::clear() { status_line::clear(); }

}  // namespace shoal
