#include <unistd.h>

#include <bit>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/host.h"
#include "report/crc32c.h"
#include "report/metrics.h"
#include "report/tensorboard_event.pb.h"

namespace shoal {
namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

tensorboard::Event event_at(std::int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(seconds_since_1970());
  event.set_step(step);
  return event;
}

// TensorBoard finds files by "tfevents" in their names, and reads the files of a folder in the order of
// names.
std::string file_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fmt::format("events.out.tfevents.{}.{}.{}.{}",
                     std::chrono::duration_cast<std::chrono::seconds>(now).count(), host_name(), ::getpid(),
                     std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() % 1'000'000'000);
}

template <typename T>
std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// TFRecord: length, checksum of the length, payload, checksum of the payload; all little-endian.
std::string to_record(const tensorboard::Event& event) {
  const auto payload = event.SerializeAsString();
  const auto length = little_endian(static_cast<std::uint64_t>(payload.size()));
  return length + little_endian(masked_crc32c(length)) + payload + little_endian(masked_crc32c(payload));
}

}  // namespace

TensorBoardSink::TensorBoardSink(const std::filesystem::path& folder, std::optional<ResumePoint> resume)
    : file_(folder / file_name()) {
  auto version = event_at(0);
  version.set_file_version("brain.Event:2");
  auto records = to_record(version);
  if (resume) {
    auto start = event_at(resume->step + 1);
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    records += to_record(start);
  }
  try {
    file_.append(records);
  } catch (const UserError&) {  // a full disk: the first measurement says so, and is written with these
  }
}

void TensorBoardSink::write_scalars(std::int64_t step, std::initializer_list<Scalar> scalars) {
  auto event = event_at(step);
  for (const auto& [tag, value] : scalars) {
    auto* entry = event.mutable_summary()->add_value();
    entry->set_tag(tag);
    entry->set_simple_value(static_cast<float>(value));
  }
  file_.append(to_record(event));
}

void TensorBoardSink::write(const StepRecord& record) {
  write_scalars(record.step, {{"train/loss", record.loss},
                              {"train/lr", record.lr},
                              {"train/grad_norm", record.grad_norm},
                              {"train/tokens", static_cast<double>(record.tokens)},
                              {"speed/tokens_per_s", record.tokens_per_s},
                              {"speed/ms_per_step", record.ms_per_step},
                              {"speed/peak_share", record.peak_share},
                              {"memory/bytes_per_rank", record.memory_per_rank}});
}

void TensorBoardSink::write(const EvalRecord& record) {
  write_scalars(record.step, {{"eval/train_loss", record.train_loss},
                              {"eval/val_loss", record.val_loss},
                              {"eval/val_perplexity", std::exp(record.val_loss)}});
  for (const auto& [source, loss] : record.val_losses) {
    const auto tag = "eval/val_loss/" + source;
    write_scalars(record.step, {{tag.c_str(), loss}});
  }
  for (const auto& [task, accuracy] : record.tasks) {
    const auto tag = "eval/task/" + task;
    write_scalars(record.step, {{tag.c_str(), accuracy}});
  }
  if (record.val_text) {
    write_scalars(record.step, {{"eval/val_word_perplexity", record.val_text->word},
                                {"eval/val_byte_perplexity", record.val_text->byte}});
  }
  if (record.val_accuracy) write_scalars(record.step, {{"eval/val_accuracy", *record.val_accuracy}});
  if (record.consensus_distance)
    write_scalars(record.step, {{"eval/consensus_distance", *record.consensus_distance}});
}

void TensorBoardSink::write(const TestRecord& record) {
  write_scalars(record.step, {{"eval/test_loss", record.loss},
                              {"eval/test_perplexity", std::exp(record.loss)},
                              {"eval/test_accuracy", record.accuracy}});
  for (const auto& [source, loss] : record.losses) {
    const auto tag = "eval/test_loss/" + source;
    write_scalars(record.step, {{tag.c_str(), loss}});
  }
  if (record.text) {
    write_scalars(record.step, {{"eval/test_word_perplexity", record.text->word},
                                {"eval/test_byte_perplexity", record.text->byte}});
  }
}

}  // namespace shoal
