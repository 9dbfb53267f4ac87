#include "checkpoint/worker_source.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_support.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kStep = 7;

// A tensor of finite numbers: random bits would include NaN, which does not equal itself.
template <typename T>
TestTensor numbers(const std::string& name, DType dtype, const Shape& shape, std::uint64_t seed) {
  TestTensor tensor(name, dtype, shape, seed);
  Dice dice(seed);
  for (std::size_t at = 0; at < tensor.data.size(); at += sizeof(T)) {
    // Very different magnitudes, so that the order of additions matters.
    const auto value =
        std::ldexp(static_cast<T>(dice.between(-1000000, 1000000)), static_cast<int>(dice.between(-40, 20)));
    std::memcpy(&tensor.data[at], &value, sizeof(T));
  }
  return tensor;
}

fs::path write(const fs::path& root, const std::vector<TestTensor>& tensors, const nlohmann::json& state) {
  std::vector<SliceView> views;
  for (const auto& tensor : tensors) views.push_back(tensor.view());
  CheckpointWriter writer(root, kStep);
  writer.write_shard(0, 1, views);
  writer.commit({.step = kStep, .shoal_version = "0", .config = "", .state = state}, 1);
  return writer.target();
}

// Cuts every worker's tensor into two ranges, in shards of different ranks.
fs::path write_cut(const fs::path& root, const std::vector<TestTensor>& tensors, int workers) {
  CheckpointWriter writer(root, kStep);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<SliceView> views;
    for (const auto& tensor : tensors) {
      auto slice = tensor.slice;
      const auto middle = slice.count() / 3;
      (rank == 0 ? slice.flat_end : slice.flat_begin) = middle;
      const auto first = static_cast<std::size_t>(slice.flat_begin) * size_of(slice.dtype);
      views.push_back({slice, std::span(tensor.data).subspan(first, slice.bytes())});
    }
    writer.write_shard(rank, 2, views);
  }
  nlohmann::json state = nlohmann::json::object();
  if (workers > 1) state[kWorkersField] = workers;
  writer.commit({.step = kStep, .shoal_version = "0", .config = "", .state = state}, 2);
  return writer.target();
}

TensorSlice random_slice(Dice& dice, const TensorSlice& whole) {
  auto slice = whole;
  if (whole.global_shape.rank() > 0) {
    const int dim = static_cast<int>(dice.between(0, whole.global_shape.rank() - 1));
    const auto begin = dice.between(0, whole.global_shape[dim]);
    slice = box_slice(whole.name, whole.dtype, whole.global_shape, dim, begin,
                      dice.between(0, whole.global_shape[dim] - begin));
  }
  slice.flat_begin = dice.between(0, slice.count());
  slice.flat_end = dice.between(slice.flat_begin, slice.flat_end);
  return slice;
}

// The mean by its definition, element by element.
template <typename T>
std::vector<std::byte> mean_of(const std::vector<TestTensor>& workers) {
  std::vector<std::byte> mean(workers.front().data.size());
  for (std::size_t at = 0; at < mean.size(); at += sizeof(T)) {
    double sum = 0;
    for (const auto& tensor : workers) {
      T value;
      std::memcpy(&value, &tensor.data[at], sizeof(T));
      sum += static_cast<double>(value);
    }
    const T rounded = static_cast<T>(sum / static_cast<double>(workers.size()));
    std::memcpy(&mean[at], &rounded, sizeof(T));
  }
  return mean;
}

template <typename T>
void reads_means_and_workers(DType dtype, const Shape& shape, int workers, std::uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} {}, {} workers", name_of(dtype), shape.to_string(), workers));
  const ScratchDir scratch;
  std::vector<TestTensor> tensors;
  for (int w = 0; w < workers; ++w) {
    tensors.push_back(numbers<T>(workers > 1 ? worker_tensor_name(w, "x") : "x", dtype, shape,
                                 seed + static_cast<std::uint64_t>(w)));
  }
  CheckpointReader reader(write_cut(scratch.path(), tensors, workers));
  EXPECT_EQ(workers_of(reader), workers);
  TestTensor plain("x", dtype, shape, 0);
  Dice dice(seed);
  const auto expect = [&](WorkerSource& source, const std::vector<std::byte>& data) {
    plain.data = data;
    for (int round = 0; round < 20; ++round) {
      const auto slice = round == 0 ? plain.slice : random_slice(dice, plain.slice);
      std::vector<std::byte> out(slice.bytes());
      source.read(slice, out);
      ASSERT_EQ(out, cut(plain, slice)) << to_string(slice);
    }
  };
  WorkerSource mean(reader);
  expect(mean, mean_of<T>(tensors));
  for (int w = 0; w < workers; ++w) {
    WorkerSource one(reader, w);
    expect(one, tensors[static_cast<std::size_t>(w)].data);
  }
}

TEST(WorkerSource, ReadsAnySliceOfTheMeanAndOfEveryWorker) {
  for (int workers = 1; workers <= 5; ++workers) {
    const auto seed = static_cast<std::uint64_t>(100 * workers);
    reads_means_and_workers<float>(DType::f32, {7, 5, 6}, workers, seed);
    reads_means_and_workers<float>(DType::f32, {}, workers, seed + 10);
    reads_means_and_workers<double>(DType::f64, {9, 4}, workers, seed + 20);
  }
}

TEST(WorkerSource, PrefersTensorsOfAPrefixWhereThereAreSome) {
  const ScratchDir scratch;
  const Shape shape{3, 4};
  const std::vector tensors = {numbers<float>("x", DType::f32, shape, 1),
                               numbers<float>("y", DType::f32, shape, 2),
                               numbers<float>("optimizer.ema.x", DType::f32, shape, 3)};
  CheckpointReader reader(write_cut(scratch.path(), tensors, 1));
  const auto read = [&](WorkerSource& source, const std::string& name) {
    const auto slice = whole_slice(name, DType::f32, shape);
    std::vector<std::byte> out(slice.bytes());
    source.read(slice, out);
    return out;
  };
  WorkerSource source(reader);
  EXPECT_FALSE(source.prefer("optimizer.outer."));
  EXPECT_EQ(read(source, "x"), tensors[0].data);
  EXPECT_TRUE(source.prefer("optimizer.ema."));
  EXPECT_EQ(read(source, "x"), tensors[2].data);
  EXPECT_EQ(read(source, "y"), tensors[1].data);
}

TEST(WorkerSource, PrefersTheMeanOfTheWorkersAverages) {
  const Shape shape{3, 4};
  const ScratchDir scratch;
  std::vector<TestTensor> tensors, averages;
  for (int w = 0; w < 2; ++w) {
    averages.push_back(numbers<float>(worker_tensor_name(w, "optimizer.ema.x"), DType::f32, shape, 10 + w));
    tensors.push_back(averages.back());
    for (const auto* name : {"x", "y"})
      tensors.push_back(numbers<float>(worker_tensor_name(w, name), DType::f32, shape, w));
  }
  CheckpointReader reader(write(scratch.path(), tensors, {{"workers", 2}}));
  const auto read = [&](WorkerSource& source, const std::string& name) {
    const auto slice = whole_slice(name, DType::f32, shape);
    std::vector<std::byte> out(slice.bytes());
    source.read(slice, out);
    return out;
  };
  WorkerSource mean(reader), second(reader, 1);
  const auto plain = read(mean, "y");
  EXPECT_TRUE(mean.prefer("optimizer.ema."));
  EXPECT_TRUE(read(mean, "x") == mean_of<float>(averages));
  EXPECT_TRUE(read(mean, "y") == plain);
  EXPECT_TRUE(second.prefer("optimizer.ema."));
  EXPECT_TRUE(read(second, "x") == averages[1].data);
}

TEST(WorkerSource, ReadsMoreThanItHoldsAtATime) {
  const Shape shape{3, 1 << 19};  // one piece and a half
  const ScratchDir scratch;
  const std::vector tensors = {numbers<float>("worker.0.x", DType::f32, shape, 1),
                               numbers<float>("worker.1.x", DType::f32, shape, 2)};
  CheckpointReader reader(write(scratch.path(), tensors, {{"workers", 2}}));
  const auto slice = whole_slice("x", DType::f32, shape);
  std::vector<std::byte> out(slice.bytes());
  WorkerSource(reader).read(slice, out);
  EXPECT_TRUE(out == mean_of<float>(tensors));
}

TEST(WorkerSource, TheMeanOfEqualModelsIsTheModel) {
  const ScratchDir scratch;
  const float values[] = {0.1f, -0.0f, 3e38f, 1e-45f, -7};
  std::vector<TestTensor> tensors;
  for (int w = 0; w < 3; ++w) {
    tensors.emplace_back(worker_tensor_name(w, "x"), DType::f32, Shape{5}, 0);
    std::memcpy(tensors.back().data.data(), values, sizeof values);
  }
  CheckpointReader reader(write(scratch.path(), tensors, {{"workers", 3}}));
  std::vector<std::byte> out(sizeof values);
  WorkerSource(reader).read(whole_slice("x", DType::f32, {5}), out);
  EXPECT_EQ(out, tensors[0].data);
}

TEST(WorkerSource, ListsATensorOnce) {
  const ScratchDir scratch;
  std::vector<TestTensor> tensors;
  for (const std::string name : {"b", "a"}) {
    for (int w = 0; w < 3; ++w) tensors.emplace_back(worker_tensor_name(w, name), DType::f32, Shape{2}, 1);
  }
  const CheckpointReader reader(write(scratch.path(), tensors, {{"workers", 3}}));
  const auto listed = tensors_of_one_worker(reader.manifest(), 3);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].name, "b");
  EXPECT_EQ(listed[1].name, "a");
  EXPECT_EQ(listed[1].shape, Shape{2});
}

class LyingWorkers : public ::testing::Test {
 protected:
  std::string error(const std::vector<std::string>& names, const nlohmann::json& workers) {
    std::vector<TestTensor> tensors;
    for (const auto& name : names) tensors.emplace_back(name, DType::f32, Shape{2}, 1);
    return error_of(tensors, workers);
  }
  std::string error_of(const std::vector<TestTensor>& tensors, const nlohmann::json& workers) {
    nlohmann::json state = {{"tokens", 1}};
    if (!workers.is_null()) state["workers"] = workers;
    const CheckpointReader reader(write(scratch_.path(), tensors, state));
    const auto text = user_error([&] { workers_of(reader); });
    EXPECT_EQ(verify_checkpoint(reader.directory()).size(), text.empty() ? 0u : 1u);
    EXPECT_THAT(text, ::testing::AnyOf("", HasSubstr(reader.directory().string())));
    return text;
  }
  ScratchDir scratch_;
};

TEST_F(LyingWorkers, AreRefused) {
  const std::vector<std::string> two = {"worker.0.x", "worker.1.x"};
  EXPECT_EQ(error(two, 2), "");
  EXPECT_EQ(error({"x", "workers.y", "worker.x", "worker.01.x", "worker.-0.x"}, {}), "");
  EXPECT_EQ(error({"x"}, 1), "");
  for (const nlohmann::json& lie :
       {nlohmann::json(0), nlohmann::json(-2), nlohmann::json(2.5), nlohmann::json("2"),
        nlohmann::json::array({2}), nlohmann::json(std::int64_t{1} << 40), nlohmann::json(UINT64_MAX)}) {
    EXPECT_THAT(error(two, lie), HasSubstr("it is of " + lie.dump() + " workers"));
  }
  EXPECT_THAT(error(two, {}), HasSubstr("tensor \"worker.0.x\""));
  EXPECT_THAT(error(two, 1), HasSubstr("tensor \"worker.0.x\""));
  EXPECT_THAT(error({"worker.0.x", "worker.1.x", "worker.2.x"}, 2), HasSubstr("\"worker.2.x\""));
  EXPECT_THAT(error({"worker.0.x", "worker.1.x", "x"}, 2), HasSubstr("\"x\" is of none"));
  EXPECT_THAT(error({"worker.0.x", "worker.1.x", "worker.01.x"}, 2), HasSubstr("\"worker.01.x\" is of none"));
  EXPECT_THAT(error(two, 2000000000), HasSubstr("there are 2 tensors"));
}

TEST_F(LyingWorkers, AWorkerMustHaveAllTensors) {
  EXPECT_THAT(error({"worker.0.x", "worker.2.x", "worker.0.y", "worker.1.y", "worker.2.y"}, 3),
              AllOf(HasSubstr("3 workers"), HasSubstr("no tensor \"worker.1.x\"")));
  EXPECT_THAT(error({"worker.1.x", "worker.0.y"}, 2), HasSubstr("no tensor \"worker.0.x\""));
}

TEST_F(LyingWorkers, TensorsMustBeAlike) {
  const std::vector shapes = {TestTensor("worker.0.x", DType::f32, {2}, 1),
                              TestTensor("worker.1.x", DType::f32, {3}, 1)};
  EXPECT_THAT(error_of(shapes, 2),
              AllOf(HasSubstr("\"worker.0.x\" is float32 [2]"), HasSubstr("\"worker.1.x\" is float32 [3]")));
}

TEST(WorkerSource, RefusesWhatIsNotThere) {
  const ScratchDir scratch;
  std::vector<TestTensor> tensors;
  for (int w = 0; w < 2; ++w) tensors.emplace_back(worker_tensor_name(w, "x"), DType::bf16, Shape{4}, 1);
  CheckpointReader reader(write(scratch.path(), tensors, {{"workers", 2}}));
  EXPECT_THAT(user_error([&] { WorkerSource(reader, 2); }),
              AllOf(HasSubstr("workers 0 to 1"), HasSubstr("worker 2")));
  WorkerSource mean(reader), second(reader, 1);
  std::vector<std::byte> out(8);
  EXPECT_THAT(user_error([&] { second.read(whole_slice("y", DType::bf16, {4}), out); }),
              HasSubstr("no tensor \"worker.1.y\"; the nearest is \"worker.1.x\""));
  EXPECT_THROW(mean.read(whole_slice("x", DType::bf16, {4}), out), Error);  // no mean of 16 bits
  EXPECT_THROW(mean.read(whole_slice("x", DType::bf16, {3}), out), Error);  // 8 bytes for 6
}

}  // namespace
}  // namespace shoal::test
