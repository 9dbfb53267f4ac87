#include "checkpoint/average.h"

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/compare.h"
#include "checkpoint/file_size_limit.h"
#include "checkpoint/worker_source.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const nlohmann::json kState = {{"tokens", 640}, {"loss_window", {1.5, 1.25}}, {"tokenizer", "{}"}};

// A parameter of two and a half pieces, its moments, one of no elements and a scalar.
const std::vector<std::pair<std::string, Shape>> kTensors = {{"wte", {5, 1 << 19}},
                                                             {"empty", {0, 3}},
                                                             {"scale", {}},
                                                             {"optimizer.m.wte", {5, 1 << 19}},
                                                             {"optimizer.m.scale", {}}};

class Average : public ::testing::Test {
 protected:
  // Every worker is a rank with its own shard; each value depends on worker, tensor and position.
  fs::path write(int workers) const {
    CheckpointWriter writer(scratch_ / "run", 20);
    for (int w = 0; w < workers; ++w) {
      std::vector<std::vector<float>> values;
      std::vector<SliceView> views;
      for (const auto& [name, shape] : kTensors) {
        auto& data = values.emplace_back(static_cast<std::size_t>(shape.count()));
        for (std::size_t i = 0; i < data.size(); ++i) {
          data[i] = 0.1f * static_cast<float>(w + 1) * static_cast<float>(i % 1013 + values.size());
        }
        views.push_back({whole_slice(workers == 1 ? name : worker_tensor_name(w, name), DType::f32, shape),
                         std::as_bytes(std::span(data))});
      }
      writer.write_shard(w, workers, views);
    }
    CheckpointInfo info{20, "0.0.9", "[run]\nname = \"a\"\n", {{"n_layer", 2}}, kState};
    if (workers > 1) {
      info.state[kWorkersField] = workers;
      info.state["worker_states"] = nlohmann::json::array({1, 2});
    }
    writer.commit(info, workers);
    return writer.target();
  }

  ScratchDir scratch_;
};

TEST_F(Average, IsACheckpointOfOneModel) {
  CheckpointReader workers(write(3));
  std::uint64_t done = 0, total = 0;
  const auto result = average_workers(workers, scratch_ / "out", [&](std::uint64_t now, std::uint64_t all) {
    EXPECT_GE(now, done);
    done = now;
    total = all;
  });
  EXPECT_EQ(result.workers, 3);
  EXPECT_EQ(result.tensors, kTensors.size());
  EXPECT_EQ(result.bytes, (2 * (5 << 19) + 2) * 4u);
  EXPECT_EQ(done, result.bytes);
  EXPECT_EQ(total, result.bytes);

  EXPECT_THAT(verify_checkpoint(scratch_ / "out"), IsEmpty());
  CheckpointReader average(scratch_ / "out");
  EXPECT_EQ(average.directory(), fs::canonical(scratch_ / "out/step-00000020"));
  EXPECT_EQ(workers_of(average), 1);
  EXPECT_EQ(average.info().step, 20);
  EXPECT_EQ(average.info().shoal_version, "0.0.9");
  EXPECT_EQ(average.info().config, workers.info().config);
  EXPECT_EQ(average.info().model, workers.info().model);
  EXPECT_EQ(average.info().state, kState);

  ASSERT_EQ(average.manifest().tensors.size(), kTensors.size());
  WorkerSource mean(workers);
  for (const auto& [name, shape] : kTensors) {
    const auto slice = whole_slice(name, DType::f32, shape);
    std::vector<std::byte> expected(slice.bytes()), out(slice.bytes());
    mean.read(slice, expected);
    average.read(slice, out);
    EXPECT_TRUE(out == expected) << name;
  }
}

TEST_F(Average, NeedsWorkers) {
  CheckpointReader one(write(1));
  EXPECT_THAT(user_error([&] { average_workers(one, scratch_ / "out"); }),
              AllOf(HasSubstr(one.directory().string()), HasSubstr("of one model already")));
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

TEST_F(Average, IsAbsentWhenTheDiskIsFull) {
  CheckpointReader workers(write(2));
  const FileSizeLimit limit(8 << 20);
  EXPECT_THAT(user_error([&] { average_workers(workers, scratch_ / "out"); }), HasSubstr("shard-00000"));
  EXPECT_TRUE(fs::is_empty(scratch_ / "out"));
}

TEST_F(Average, IsAbsentWhenAWorkerIsDamaged) {
  const auto directory = write(2);
  flip_byte(directory / "shard-00001-of-00002.safetensors", 9 << 20);
  EXPECT_THAT(verify_checkpoint(directory), ElementsAre(HasSubstr("shard-00001")));
  CheckpointReader workers(directory);
  EXPECT_THAT(user_error([&] { average_workers(workers, scratch_ / "out"); }),
              AllOf(HasSubstr("shard-00001"), HasSubstr("damaged")));
  EXPECT_TRUE(fs::is_empty(scratch_ / "out"));
}

TEST_F(Average, IsNotComparedWithWorkers) {
  const auto directory = write(2);
  EXPECT_THAT(compare_checkpoints(directory, directory).differences, IsEmpty());
  CheckpointReader workers(directory);
  average_workers(workers, scratch_ / "out");
  try {
    compare_checkpoints(directory, scratch_ / "out");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("is of 2 workers' models and"), HasSubstr("of one model")));
  }
}

}  // namespace
}  // namespace shoal::test
