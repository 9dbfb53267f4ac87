#include "report/reporter.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace shoal {

Reporter::Reporter(const Config& config, std::optional<double> entropy_floor,
                   std::optional<ResumePoint> resume)
    : console_(std::in_place, config.train.steps, entropy_floor) {
  for (auto& sink : open_metrics(config.log, config.run.path(), resume)) sinks_.push_back({std::move(sink)});
}

void Reporter::step(const StepRecord& record, double seconds_left) {
  if (console_) console_->step(record, seconds_left);
  write(record);
}

void Reporter::bar(std::int64_t step, double loss, double seconds_left) {
  if (console_) console_->bar(step, loss, seconds_left);
}

void Reporter::evaluation(const EvalRecord& record, const TrainTime& time) {
  if (console_) console_->evaluation(record, time);
  write(record);
}

void Reporter::test(const TestRecord& record) {
  if (console_) console_->test(record);
  write(record);
}

void Reporter::flush() const {
  for (const auto& [sink, fails] : sinks_) sink->flush();
}

void Reporter::clear() {
  if (console_) console_->clear();
}

// A full disk must not end the run: there may be space again for the next record.
template <typename Record>
void Reporter::write(const Record& record) {
  for (auto& [sink, fails] : sinks_) {
    try {
      sink->write(record);
      if (std::exchange(fails, false)) {
        clear();
        log::info("there is space for metrics again, and those that were held back are written");
      }
    } catch (const UserError& error) {
      if (std::exchange(fails, true)) continue;
      clear();
      log::warn("{}; training continues, and the metrics are held back until there is space", error.what());
    }
  }
}

}  // namespace shoal
