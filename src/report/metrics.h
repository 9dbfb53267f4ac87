// The metrics of a run, and the sinks that write them: metrics.jsonl and TensorBoard events.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "report/record_file.h"

namespace shoal {

// One logged step. Values that are not finite are written as null.
struct StepRecord {
  std::int64_t step = 0;  // completed optimizer steps
  double loss = 0;        // mean training loss of this step, nats per token
  double lr = 0;
  double grad_norm = 0;     // before clipping
  std::int64_t tokens = 0;  // tokens trained on since the run's first step
  // Fields that depend on time, the only ones that differ between two equal runs:
  double tokens_per_s = 0;
  double ms_per_step = 0;
  double peak_share = 0;       // FLOP/s as share of the machine's measured peak, 0..1
  double memory_per_rank = 0;  // bytes: the most that rank 0's process has held so far, over its ranks
};

// exp(nats per word) and exp(nats per byte) of a whole split.
struct TextPerplexity {
  double word = 0, byte = 0;
};

// The loss on one of the folders of a mixture.
struct SourceLoss {
  std::string source;
  double loss = 0;
};

// The share of a task's items that the model has right.
struct TaskResult {
  std::string task;
  double accuracy = 0;  // 0..1
};

// One evaluation, after `step` optimizer steps. Losses in nats per token.
struct EvalRecord {
  std::int64_t step = 0;
  double train_loss = 0;
  double val_loss = 0;
  std::optional<double> val_accuracy = {};      // next-token accuracy, 0..1
  std::optional<TextPerplexity> val_text = {};  // where the whole split is evaluated and can be decoded
  std::vector<SourceLoss> val_losses = {};
  std::vector<TaskResult> tasks = {};
  std::vector<std::string> samples = {};     // texts that the model wrote
  std::optional<double> entropy_floor = {};  // lowest possible loss on this data, where it is known
  // With gossip, the losses are those of the workers' mean model: distance of the workers' models from the
  // mean, relative to its norm.
  std::optional<double> consensus_distance = {};
};

// The evaluation of the final model on the whole test split.
struct TestRecord {
  std::int64_t step = 0;
  double loss = 0;
  double accuracy = 0;                      // next-token accuracy, 0..1
  std::optional<TextPerplexity> text = {};  // where it can be decoded
  std::vector<SourceLoss> losses = {};
};

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(const StepRecord& record) = 0;
  virtual void write(const EvalRecord& record) = 0;
  virtual void write(const TestRecord& record) = 0;
  // Writes records for which a full disk had no room, if it has now. May be called while another thread
  // writes.
  virtual void flush() = 0;
};

// The state that a run goes on from.
struct ResumePoint {
  ResumePoint(std::int64_t after, bool left = false) : step(after), evaluation_left(left) {}
  std::int64_t step;
  bool evaluation_left;  // whether the evaluation after the step is still to come
};

// Writes one JSON object per line and flushes it at once. Numbers read back to the same double. Reproducible
// fields come first, in a fixed order.
//
// Without `resume` the file must be new or empty: throws UserError rather than overwrite the metrics of
// an earlier run. With it, the file is truncated after the last record of that step or an earlier one, and
// before a test record and an evaluation that is still to come, so that it continues like the file of an
// uninterrupted run; an unfinished last line is dropped. Throws UserError when the file cannot be opened,
// read or written (disk full).
class JsonlSink : public MetricsSink {
 public:
  explicit JsonlSink(const std::filesystem::path& file, std::optional<ResumePoint> resume = {});
  void write(const StepRecord& record) override;
  void write(const EvalRecord& record) override;
  void write(const TestRecord& record) override;
  void flush() override { file_->flush(); }

 private:
  std::optional<RecordFile> file_;
};

// Writes a TensorBoard event file (TFRecord framing) in `folder`. A resumed run adds a new file, which makes
// TensorBoard discard all events after the resume's step. Throws UserError when the file cannot be created,
// and where there is no room for a measurement.
class TensorBoardSink : public MetricsSink {
 public:
  explicit TensorBoardSink(const std::filesystem::path& folder, std::optional<ResumePoint> resume = {});
  void write(const StepRecord& record) override;
  void write(const EvalRecord& record) override;
  void write(const TestRecord& record) override;
  void flush() override { file_.flush(); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  struct Scalar {
    const char* tag;
    double value;
  };
  void write_scalars(std::int64_t step, std::initializer_list<Scalar> scalars);

  RecordFile file_;
};

// The sinks that the config asks for: run_dir/metrics.jsonl and run_dir/events.out.tfevents.*.
std::vector<std::unique_ptr<MetricsSink>> open_metrics(const LogConfig& config,
                                                       const std::filesystem::path& run_dir,
                                                       std::optional<ResumePoint> resume = {});

// The records of a metrics.jsonl; null values become NaN.
struct Metrics {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evals;
  std::optional<TestRecord> test = {};
};
// Throws UserError for a file that is missing, empty or damaged, with the line. Ignores an unfinished last
// line, which a running or killed run leaves.
Metrics read_metrics(const std::filesystem::path& file);
// The same, for a run that may have just begun: an empty file has no records.
Metrics read_metrics_so_far(const std::filesystem::path& file);
// Whether the file has a test record. Lines that cannot be read have none.
bool has_test_record(const std::filesystem::path& file);

}  // namespace shoal
