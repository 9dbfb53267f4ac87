#include "report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "checkpoint/file_size_limit.h"
#include "core/error.h"
#include "report/crc32c.h"
#include "report/tensorboard_event.pb.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    std::string pattern = (fs::temp_directory_path() / "shoal-metrics-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~MetricsTest() override { fs::remove_all(dir_); }

  fs::path file() const { return dir_ / "metrics.jsonl"; }
  static std::string read(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path dir_;
};

StepRecord step_at(std::int64_t step) {
  return {.step = step,
          .loss = 1.0 / static_cast<double>(step),
          .lr = 1e-3,
          .grad_norm = 0.1f,
          .tokens = step * 100};
}

void write_steps(MetricsSink& sink, std::int64_t from, std::int64_t to) {
  for (auto step = from; step <= to; ++step) {
    sink.write(step_at(step));
    if (step % 4 == 0) sink.write(EvalRecord{.step = step, .train_loss = 1.5, .val_loss = 2});
  }
}

TEST_F(MetricsTest, LinesHaveTheReproducibleFieldsFirst) {
  JsonlSink sink(file());
  sink.write(StepRecord{.step = 3,
                        .loss = 2.5,
                        .lr = 6e-4,
                        .grad_norm = 1,
                        .tokens = 30,
                        .tokens_per_s = 10,
                        .ms_per_step = 1000,
                        .peak_share = 0.5,
                        .memory_per_rank = 4096});
  sink.write(
      EvalRecord{.step = 3, .train_loss = 0, .val_loss = 0, .val_accuracy = 0.25, .entropy_floor = 1.5});
  sink.write(TestRecord{.step = 3, .loss = 0, .accuracy = 0.75});
  EXPECT_EQ(
      read(file()),
      R"({"step":3,"loss":2.5,"lr":0.0006,"grad_norm":1,"tokens":30,"tokens_per_s":10,"ms_per_step":1000,"peak_share":0.5,"memory_per_rank":4096})"
      "\n"
      R"({"step":3,"train_loss":0,"val_loss":0,"val_perplexity":1,"val_accuracy":0.25,"entropy_floor":1.5})"
      "\n"
      R"({"step":3,"test_loss":0,"test_perplexity":1,"test_accuracy":0.75})"
      "\n");
  const auto metrics = read_metrics(file());
  EXPECT_EQ(metrics.steps.size(), 1u);
  EXPECT_FALSE(metrics.test->text);
  EXPECT_EQ(metrics.evals.size(), 1u);
  ASSERT_TRUE(metrics.test);
  EXPECT_EQ(metrics.test->step, 3);
  EXPECT_EQ(metrics.test->loss, 0);
  EXPECT_EQ(metrics.test->accuracy, 0.75);
}

TEST_F(MetricsTest, TextsReadBack) {
  const std::vector<std::string> texts = {"two\nlines, \"quoted\"", "", "Łódź"};
  JsonlSink(file()).write(EvalRecord{.step = 1, .train_loss = 1, .val_loss = 1, .samples = texts});
  EXPECT_EQ(read_metrics(file()).evals.front().samples, texts);
}

TEST_F(MetricsTest, NumbersReadBackToTheSameDouble) {
  const double awkward[] = {
      0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, static_cast<double>(0.1f), 123456789.123456789};
  {
    JsonlSink sink(file());
    for (const double value : awkward) sink.write(StepRecord{.step = 1, .loss = value});
    sink.write(
        StepRecord{.step = 2, .loss = std::numeric_limits<double>::quiet_NaN(), .grad_norm = INFINITY});
  }
  const auto metrics = read_metrics(file());
  for (std::size_t i = 0; i < std::size(awkward); ++i) EXPECT_EQ(metrics.steps[i].loss, awkward[i]);
  EXPECT_TRUE(std::isnan(metrics.steps.back().loss));
  EXPECT_TRUE(std::isnan(metrics.steps.back().grad_norm));
}

TEST_F(MetricsTest, AResumedFileEqualsAnUninterruptedOne) {
  {
    JsonlSink whole(file());
    write_steps(whole, 1, 12);
  }
  const auto expected = read(file());
  fs::remove(file());
  {
    JsonlSink first(file());
    write_steps(first, 1, 10);  // the checkpoint has step 8; 9 and 10 are lost
  }
  JsonlSink(file(), 10).write(TestRecord{.step = 10, .loss = 2});  // the end of the first run
  std::ofstream(file(), std::ios::app) << R"({"step":11,"lo)";     // killed while writing
  {
    JsonlSink resumed(file(), 8);
    write_steps(resumed, 9, 12);
  }
  EXPECT_EQ(read(file()), expected);
}

TEST_F(MetricsTest, ARunThatGoesOnLosesItsTestRecord) {
  {
    JsonlSink first(file());
    write_steps(first, 1, 8);
  }
  const auto expected = read(file());
  { JsonlSink(file(), 8).write(TestRecord{.step = 8, .loss = 2}); }
  EXPECT_NE(read(file()), expected);
  { JsonlSink(file(), 8); }
  EXPECT_EQ(read(file()), expected);
}

// It was written, but the checkpoint that knows of it was lost.
TEST_F(MetricsTest, AnEvaluationThatIsStillToComeIsNotThereTwice) {
  {
    JsonlSink first(file());
    write_steps(first, 1, 7);
  }
  const auto expected = read(file());
  { JsonlSink(file(), 7).write(EvalRecord{.step = 7, .train_loss = 1, .val_loss = 1}); }
  const auto with_evaluation = read(file());
  { JsonlSink(file(), 7); }
  EXPECT_EQ(read(file()), with_evaluation);
  { JsonlSink(file(), ResumePoint(7, true)); }
  EXPECT_EQ(read(file()), expected);
}

TEST_F(MetricsTest, AnEarlierRunIsNotOverwritten) {
  { JsonlSink(file()).write(step_at(1)); }
  const auto before = read(file());
  EXPECT_THROW(JsonlSink{file()}, UserError);
  EXPECT_EQ(read(file()), before);
}

TEST_F(MetricsTest, ResumingADamagedFileLeavesItAlone) {
  std::ofstream(file()) << "{\"step\":1}\nnonsense\n{\"step\":3}\n";
  const auto before = read(file());
  EXPECT_THROW((JsonlSink{file(), 2}), UserError);
  EXPECT_EQ(read(file()), before);
}

// A power failure leaves anything behind what was on the disk when the checkpoint was saved.
TEST_F(MetricsTest, WhatIsDamagedBehindTheRecordsOfTheCheckpointIsDropped) {
  {
    JsonlSink first(file());
    write_steps(first, 1, 8);
  }
  const auto expected = read(file());
  for (const auto& torn : {std::string(700, '\0') + "\n", "ep\":9,\"loss\":1}\n" + expected}) {
    std::ofstream(file(), std::ios::binary) << expected << torn;
    { JsonlSink(file(), 8); }
    EXPECT_EQ(read(file()), expected);
  }
  std::ofstream(file(), std::ios::binary) << expected << "nonsense\nand more\n";
  { JsonlSink(file(), 9); }  // whose record may never have been written
  EXPECT_EQ(read(file()), expected);
}

TEST_F(MetricsTest, AFullDiskIsSaid) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  JsonlSink sink("/dev/full");
  EXPECT_THROW(sink.write(step_at(1)), UserError);
}

// A disk that is full for a while loses no record, and the file never ends in a part of one.
TEST_F(MetricsTest, RecordsWaitForSpace) {
  {
    JsonlSink all(dir_ / "all.jsonl"), held(file());
    for (int step = 1; step <= 6; ++step) {
      all.write(step_at(step));
      const auto size = fs::file_size(file());
      if (step == 3 || step == 4) {
        const test::FileSizeLimit full(size + 20);
        EXPECT_THROW(held.write(step_at(step)), UserError);
        held.flush();
        EXPECT_EQ(fs::file_size(file()), size);
      } else {
        held.write(step_at(step));
      }
    }
  }
  EXPECT_EQ(read(file()), read(dir_ / "all.jsonl"));
  JsonlSink held(file(), 6);
  {
    const test::FileSizeLimit full(fs::file_size(file()));
    EXPECT_THROW(held.write(step_at(7)), UserError);
  }
  held.flush();
  EXPECT_EQ(read_metrics(file()).steps.size(), 7u);
}

TEST_F(MetricsTest, OpensWhatTheConfigAsksFor) {
  EXPECT_EQ(open_metrics({.tensorboard = false, .jsonl = false}, dir_).size(), 0u);
  EXPECT_EQ(open_metrics({.tensorboard = true, .jsonl = true}, dir_).size(), 2u);
  EXPECT_THROW(open_metrics({}, dir_ / "absent"), UserError);
}

TEST(Crc32c, MatchesThePublishedCheckValue) { EXPECT_EQ(crc32c("123456789"), 0xe3069283u); }

// Parses the TFRecord framing and checks both checksums of every record.
std::vector<tensorboard::Event> read_events(std::string_view bytes) {
  const auto number = [&](std::size_t at, int size) {
    std::uint64_t value = 0;
    for (int i = size; i-- > 0;)
      value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
    return value;
  };
  std::vector<tensorboard::Event> events;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = number(at, 8);
    EXPECT_EQ(number(at + 8, 4), masked_crc32c(bytes.substr(at, 8)));
    const auto payload = bytes.substr(at + 12, length);
    EXPECT_EQ(number(at + 12 + length, 4), masked_crc32c(payload));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(payload)));
    at += 16 + length;
  }
  return events;
}

TEST_F(MetricsTest, TensorBoardEventsReadBack) {
  TensorBoardSink sink(dir_, 5);
  sink.write(StepRecord{.step = 6, .loss = 2.5});
  sink.write(EvalRecord{.step = 6, .train_loss = 1, .val_loss = 2, .val_accuracy = 0.5});
  sink.write(TestRecord{.step = 7, .loss = 3, .accuracy = 0.5});
  const auto events = read_events(read(sink.path()));
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 6);
  EXPECT_EQ(events[2].summary().value(0).tag(), "train/loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 2.5f);
  EXPECT_EQ(events[2].summary().value(1).tag(), "train/lr");
  EXPECT_TRUE(events[2].summary().value(1).has_simple_value()) << "a zero must be written";
  EXPECT_EQ(events[3].summary().value(1).tag(), "eval/val_loss");
  EXPECT_EQ(events[4].step(), 6);
  EXPECT_EQ(events[5].step(), 7);
  EXPECT_EQ(events[5].summary().value(0).tag(), "eval/test_loss");
  EXPECT_EQ(events[5].summary().value(0).simple_value(), 3.0f);
}

// A run may go on on a full disk.
TEST_F(MetricsTest, TensorBoardEventsWaitForSpace) {
  std::optional<TensorBoardSink> sink;
  {
    const test::FileSizeLimit full(0);
    sink.emplace(dir_, 5);
    EXPECT_THROW(sink->write(StepRecord{.step = 6}), UserError);
  }
  sink->flush();
  const auto events = read_events(read(sink->path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[2].step(), 6);
}

}  // namespace
}  // namespace shoal
