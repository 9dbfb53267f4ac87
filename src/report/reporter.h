// Reports the metrics of a run to the console and to its metrics files.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "report/console.h"
#include "report/metrics.h"

namespace shoal {

class Reporter {
 public:
  Reporter() = default;  // reports nothing: for all ranks but the first
  // `resume` is as in open_metrics(), and so are errors.
  Reporter(const Config& config, std::optional<double> entropy_floor, std::optional<ResumePoint> resume);

  void step(const StepRecord& record, double seconds_left);
  void bar(std::int64_t step, double loss, double seconds_left);
  void evaluation(const EvalRecord& record, const TrainTime& time);
  void test(const TestRecord& record);
  // Writes metrics that were held back, if there is space. May be called while another thread reports.
  void flush() const;
  void clear();  // removes the progress bar; call it before any other output

 private:
  struct Sink {
    std::unique_ptr<MetricsSink> sink;
    bool fails = false;  // and that was said
  };
  template <typename Record>
  void write(const Record& record);

  std::optional<Console> console_;
  std::vector<Sink> sinks_;
};

}  // namespace shoal
