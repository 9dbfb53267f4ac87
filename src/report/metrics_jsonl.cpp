#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_integer.h"
#include "core/json_text.h"
#include "report/metrics.h"

namespace shoal {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; }

// Reads the complete lines of a file, without an unfinished last one.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& path) : path_(path), stream_(path, std::ios::binary) {
    if (!stream_) fail_user("cannot read {}: {}", path.string(), std::strerror(errno));
  }
  // The object of the next line, null where that is damaged, or nothing at the end.
  std::optional<nlohmann::json> next_or_damaged() {
    std::string text;
    std::getline(stream_, text);
    if (stream_.bad()) fail_user("cannot read {}: {}", path_.string(), std::strerror(errno));
    if (!stream_ || stream_.eof()) return std::nullopt;
    ++line_;
    begin_ = end_;
    end_ += text.size() + 1;
    auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) json = nullptr;
    return json;
  }
  // The same; throws UserError where a line is damaged.
  std::optional<nlohmann::json> next() {
    auto json = next_or_damaged();
    if (json && json->is_null()) fail_damaged(line_);
    return json;
  }
  // To be called behind a damaged line: throws the same error where another line follows that is not.
  void require_damaged_to_the_end() {
    const auto line = line_;
    while (const auto json = next_or_damaged()) {
      if (!json->is_null()) fail_damaged(line);
    }
  }
  std::uintmax_t begin() const { return begin_; }  // offset of the last returned line
  std::uintmax_t end() const { return end_; }      // offset of its end

 private:
  [[noreturn]] void fail_damaged(std::int64_t line) const {
    fail_user("{}:{}: not a metrics record; the file is damaged here: delete this line, or restore the file",
              path_.string(), line);
  }

  std::filesystem::path path_;
  std::ifstream stream_;
  std::uintmax_t begin_ = 0, end_ = 0;
  std::int64_t line_ = 0;
};

// The number of bytes to keep: the records up to the step, without a test record, which is the last of a run,
// and without an evaluation that is still to come: a save of it may have failed. Lines behind the record of
// `step` may be damaged, as by a power failure, and so may all lines to the file's end.
std::uintmax_t bytes_up_to(const std::filesystem::path& path, ResumePoint resume) {
  LineReader lines(path);
  std::int64_t last = -1;
  while (const auto record = lines.next_or_damaged()) {
    if (record->is_null()) {
      const auto whole = lines.begin();
      if (last < resume.step) lines.require_damaged_to_the_end();
      return whole;
    }
    last = (*record)["step"].get<std::int64_t>();
    const bool made_again = resume.evaluation_left && last == resume.step && record->contains("val_loss");
    if (last > resume.step || made_again || record->contains("test_loss")) return lines.begin();
  }
  return lines.end();
}

double read_number(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  return found == record.end() || !found->is_number() ? std::numeric_limits<double>::quiet_NaN()
                                                      : found->get<double>();
}

// 0 where it is missing, as in the files of earlier versions.
std::int64_t read_count(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  return found == record.end() ? 0 : integer_of<std::int64_t>(*found).value_or(0);
}

std::optional<double> read_optional(const nlohmann::json& record, const char* key) {
  if (!record.contains(key)) return std::nullopt;
  return read_number(record, key);
}

std::string text_fields(std::string_view split, const std::optional<TextPerplexity>& text) {
  if (!text) return "";
  return fmt::format(R"(,"{0}_word_perplexity":{1},"{0}_byte_perplexity":{2})", split, number(text->word),
                     number(text->byte));
}

std::string source_fields(std::string_view split, const std::vector<SourceLoss>& losses) {
  if (losses.empty()) return "";
  nlohmann::ordered_json sources;
  for (const auto& [source, loss] : losses) sources[source] = loss;
  return fmt::format(R"(,"{}_losses":{})", split, json_text(sources));
}

std::vector<SourceLoss> read_sources(const nlohmann::json& record, const std::string& split) {
  const auto found = record.find(split + "_losses");
  std::vector<SourceLoss> losses;
  if (found == record.end() || !found->is_object()) return losses;
  for (const auto& [source, loss] : found->items())
    losses.push_back({source, read_number(*found, source.c_str())});
  return losses;
}

std::vector<std::string> read_samples(const nlohmann::json& record) {
  const auto found = record.find("samples");
  std::vector<std::string> samples;
  if (found == record.end() || !found->is_array()) return samples;
  for (const auto& text : *found) {
    if (text.is_string()) samples.push_back(text);
  }
  return samples;
}

std::optional<TextPerplexity> read_perplexity(const nlohmann::json& record, const std::string& split) {
  const auto word = split + "_word_perplexity", byte = split + "_byte_perplexity";
  if (!record.contains(word)) return std::nullopt;
  return TextPerplexity{.word = read_number(record, word.c_str()), .byte = read_number(record, byte.c_str())};
}

}  // namespace

JsonlSink::JsonlSink(const std::filesystem::path& path, std::optional<ResumePoint> resume) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(path, missing);
  if (!missing && size > 0) {
    if (!resume) {
      fail_user(
          "{} holds the measurements of an earlier run; go on with it (init.from=resume), or choose another "
          "run.name",
          path.string());
    }
    std::error_code error;
    std::filesystem::resize_file(path, bytes_up_to(path, *resume), error);
    if (error) fail_user("cannot write {}: {}", path.string(), error.message());
  }
  file_.emplace(path);
}

void JsonlSink::write(const StepRecord& r) {
  file_->append(fmt::format(R"({{"step":{},"loss":{},"lr":{},"grad_norm":{},"tokens":{},)"
                            R"("tokens_per_s":{},"ms_per_step":{},"peak_share":{},"memory_per_rank":{:.0f}}})"
                            "\n",
                            r.step, number(r.loss), number(r.lr), number(r.grad_norm), r.tokens,
                            number(r.tokens_per_s), number(r.ms_per_step), number(r.peak_share),
                            r.memory_per_rank));
}

void JsonlSink::write(const EvalRecord& r) {
  std::string line = fmt::format(R"({{"step":{},"train_loss":{},"val_loss":{},"val_perplexity":{})", r.step,
                                 number(r.train_loss), number(r.val_loss), number(std::exp(r.val_loss)));
  line += source_fields("val", r.val_losses) + text_fields("val", r.val_text);
  if (r.val_accuracy) line += fmt::format(R"(,"val_accuracy":{})", number(*r.val_accuracy));
  for (const auto& [task, accuracy] : r.tasks) {
    line += fmt::format(",{}:{}", json_text(nlohmann::json("task_" + task + "_accuracy")), number(accuracy));
  }
  if (!r.samples.empty()) line += ",\"samples\":" + json_text(nlohmann::json(r.samples));
  if (r.consensus_distance) line += fmt::format(R"(,"consensus_distance":{})", number(*r.consensus_distance));
  if (r.entropy_floor) line += fmt::format(R"(,"entropy_floor":{})", number(*r.entropy_floor));
  file_->append(line + "}\n");
}

void JsonlSink::write(const TestRecord& r) {
  file_->append(fmt::format(R"({{"step":{},"test_loss":{},"test_perplexity":{}{},"test_accuracy":{}}})"
                            "\n",
                            r.step, number(r.loss), number(std::exp(r.loss)),
                            source_fields("test", r.losses) + text_fields("test", r.text),
                            number(r.accuracy)));
}

Metrics read_metrics_so_far(const std::filesystem::path& file) {
  LineReader lines(file);
  Metrics metrics;
  while (const auto record = lines.next()) {
    const auto step = (*record)["step"].get<std::int64_t>();
    if (record->contains("val_loss")) {
      metrics.evals.push_back({.step = step,
                               .train_loss = read_number(*record, "train_loss"),
                               .val_loss = read_number(*record, "val_loss"),
                               .val_accuracy = read_optional(*record, "val_accuracy"),
                               .val_text = read_perplexity(*record, "val"),
                               .val_losses = read_sources(*record, "val"),
                               .samples = read_samples(*record),
                               .entropy_floor = read_optional(*record, "entropy_floor"),
                               .consensus_distance = read_optional(*record, "consensus_distance")});
    } else if (record->contains("test_loss")) {
      metrics.test = {.step = step,
                      .loss = read_number(*record, "test_loss"),
                      .accuracy = read_number(*record, "test_accuracy"),
                      .text = read_perplexity(*record, "test"),
                      .losses = read_sources(*record, "test")};
    } else {
      metrics.steps.push_back(
          {.step = step,
           .loss = read_number(*record, "loss"),
           .lr = read_number(*record, "lr"),
           .grad_norm = read_number(*record, "grad_norm"),
           .tokens = read_count(*record, "tokens"),
           .tokens_per_s = read_number(*record, "tokens_per_s"),
           .ms_per_step = read_number(*record, "ms_per_step"),
           .peak_share = read_number(*record, "peak_share"),
           .memory_per_rank = static_cast<double>(read_count(*record, "memory_per_rank"))});
    }
  }
  return metrics;
}

Metrics read_metrics(const std::filesystem::path& file) {
  auto metrics = read_metrics_so_far(file);
  if (metrics.steps.empty() && metrics.evals.empty() && !metrics.test)
    fail_user("{} holds no records yet", file.string());
  return metrics;
}

bool has_test_record(const std::filesystem::path& file) {
  LineReader lines(file);
  while (const auto record = lines.next_or_damaged()) {
    if (record->contains("test_loss")) return true;
  }
  return false;
}

std::vector<std::unique_ptr<MetricsSink>> open_metrics(const LogConfig& config,
                                                       const std::filesystem::path& run_dir,
                                                       std::optional<ResumePoint> resume) {
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  if (config.jsonl) sinks.push_back(std::make_unique<JsonlSink>(run_dir / "metrics.jsonl", resume));
  if (config.tensorboard) sinks.push_back(std::make_unique<TensorBoardSink>(run_dir, resume));
  return sinks;
}

}  // namespace shoal
