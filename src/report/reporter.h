// What a run tells of its measurements: to whoever watches, and to its metrics files.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "report/console.h"
#include "report/metrics.h"

namespace shoal {

class Reporter {
 public:
  Reporter() = default;  // tells nobody: on all ranks but the first
  // `resume_step` as in open_metrics. Throws UserError as that does.
  Reporter(const Config& config, std::optional<double> entropy_floor,
           std::optional<std::int64_t> resume_step);

  void step(const StepRecord& record, double seconds_left);
  void bar(std::int64_t step, double loss, double seconds_left);
  void evaluation(const EvalRecord& record, const TrainTime& time);
  void test(const TestRecord& record);
  void clear();  // before anything else is printed

 private:
  template <typename Record>
  void write(const Record& record);

  std::optional<Console> console_;
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
};

}  // namespace shoal
