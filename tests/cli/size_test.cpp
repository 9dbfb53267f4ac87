// shoal size, compared with the known sizes of GPT-2 and the memory of runs.
#include <cmath>
#include <iterator>
#include <limits>
#include <sstream>

#include "cli/run.h"
#include "core/clock.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

constexpr const char* kSizedConfig = R"(
[data]
dir = "data"
[train]
steps = 2
threads = 2
[eval]
interval = 2
batches = 1
at_start = false
)";

// The bytes printed in the last "  NAME   123.4 MiB".
double bytes_of(const std::string& output, const std::string& name) {
  double bytes = std::nan("");
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  " + name + "  ")) continue;
    std::istringstream rest(line.substr(2 + name.size()));
    double value = 0;
    std::string unit;
    rest >> value >> unit;
    if (unit == "KiB") bytes = value * 1024;
    if (unit == "MiB") bytes = value * 1024 * 1024;
    if (unit == "GiB") bytes = value * 1024 * 1024 * 1024;
  }
  return bytes;
}

// GPT-2's count is 124,439,808 by its published shapes; its data need not be there.
TEST(Size, CountsGpt2WithoutItsData) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kSizedConfig);
  const auto result = run({"size", "gpt2.toml", "model.preset=gpt2"}, folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("vocabulary 50,257 (GPT-2's: there is no data yet"));
  EXPECT_THAT(result.out, HasSubstr("124,439,808"));
  EXPECT_THAT(result.out, HasSubstr("7,087,872 each"));
  // 6 N + 12 L C T = 6 * 124,439,808 + 12 * 12 * 768 * 1024
  EXPECT_THAT(result.out, HasSubstr("859.9 MFLOP"));
  EXPECT_THAT(result.out, HasSubstr("10.6 TFLOP"));  // of 12 x 1024 tokens
}

TEST(Size, TakesAGivenVocabulary) {
  TempDir folder;
  write_file(folder / "a.toml", kSizedConfig);
  const auto result = run({"size", "a.toml", "model.vocab_size=100"}, folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("vocabulary 100 (model.vocab_size)"));
  expect_user_error(run({"size", "a.toml", "model.vocab_siz=100"}, folder.path()), "model.vocab_size");
  expect_user_error(run({"size", "absent.toml"}, folder.path()), "absent.toml");
}

TEST(Size, IsWhatARunTakes) {
  if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
  TempDir folder;
  write_file(folder / "run.toml", kSizedConfig);
  ASSERT_EQ(run({"prepare", "synthetic", "--size", "20000", "--out", "data"}, folder.path()).code, 0);
  // Settings where activations dominate, and where logits, moments and the checkpoint do.
  const std::vector<std::vector<std::string>> cases = {
      {"run.name=activations", "model.n_layer=4", "model.n_head=4", "model.n_embd=128",
       "model.block_size=256", "train.global_batch=12"},
      {"run.name=vocabulary", "model.n_layer=2", "model.n_head=4", "model.n_embd=128", "model.block_size=64",
       "model.vocab_size=20000", "train.global_batch=8", "train.micro_batch=4", "train.dtype=bfloat16",
       "train.recompute=block"},
  };
  for (auto settings : cases) {
    SCOPED_TRACE(settings.front());
    settings.insert(settings.begin(), {"size", "run.toml"});
    const auto size = run(settings, folder.path());
    settings.front() = "train";
    const auto trained = run(settings, folder.path());
    ASSERT_EQ(trained.code, 0) << trained.err;
    const double said = bytes_of(size.out, "total");
    EXPECT_THAT(size.out, HasSubstr("  sums for the gradient's norm\n"));
    EXPECT_GT(said, 100e6) << size.out;  // large, so that the system's own memory is negligible
    EXPECT_NEAR(trained.peak_bytes / said, 1, 0.1) << size.out;

    std::uintmax_t written = 0;
    const auto checkpoint = folder.path() / "runs" / settings[2].substr(9) / "checkpoints" / "step-00000002";
    for (const auto& file : fs::directory_iterator(checkpoint)) {
      if (file.path().extension() == ".safetensors") written += file.file_size();
    }
    // "checkpoint" is printed for the file first, then for the copy in memory, which is larger.
    const auto files = size.out.substr(0, size.out.find("memory of training"));
    EXPECT_NEAR(static_cast<double>(written) / bytes_of(files, "checkpoint"), 1, 0.01);
  }
}

// 3.2 M parameters, whose state is nearly all of a rank's memory.
constexpr const char* kMostlyState = R"(
[data]
dir = "data"
[model]
n_layer = 3
n_head = 4
n_embd = 256
block_size = 32
vocab_size = 3000
[train]
steps = 2
global_batch = 8
micro_batch = 1
threads = 1
[eval]
interval = 2
batches = 1
at_start = false
[log]
tensorboard = false
peak_tflops = 0.1
)";

class SizeOfRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers take memory of their own";
    write_file(folder_ / "run.toml", kMostlyState);
    ASSERT_EQ(run({"prepare", "synthetic", "--size", "20000", "--out", "data"}, folder_.path()).code, 0);
  }

  static std::string zero_setting(int zero) { return "parallel.zero=" + std::to_string(zero); }
  // The estimate of shoal size for all these ranks.
  double said(const std::vector<std::string>& settings, int ranks, const std::string& line) const {
    std::vector<std::string> command = {"size", "run.toml", "--ranks", std::to_string(ranks)};
    command.insert(command.end(), settings.begin(), settings.end());
    const auto size = run(command, folder_.path());
    EXPECT_EQ(size.code, 0) << size.err;
    return bytes_of(size.out, line);
  }
  // The peak of one process of a run.
  double took(std::vector<std::string> command, const std::vector<std::string>& settings) {
    command.insert(command.end(), {"run.toml", "run.name=" + std::to_string(++runs_)});
    command.insert(command.end(), settings.begin(), settings.end());
    const auto result = run(command, folder_.path());
    EXPECT_EQ(result.code, 0) << result.err;
    return result.peak_bytes;
  }

  TempDir folder_;
  int runs_ = 0;
};

TEST_F(SizeOfRanks, IsWhatThreadsTakeTogether) {
  const std::vector<std::pair<int, int>> cases[] = {
      {{0, 1}, {0, 8}}, {{1, 2}, {1, 8}}, {{2, 2}, {2, 8}}, {{3, 4}, {3, 8}}};
  for (const auto& few_then_many : cases) {
    double before = std::numeric_limits<double>::infinity();
    for (const auto& [zero, ranks] : few_then_many) {
      const auto n = std::to_string(ranks);
      const double peak = took({"train", "--ranks", n}, {zero_setting(zero)});
      EXPECT_NEAR(peak / said({zero_setting(zero)}, ranks, ranks == 1 ? "total" : n + " ranks on one host"),
                  1, 0.1)
          << "ZeRO-" << zero << ", " << ranks << " ranks";
      EXPECT_LT(peak / ranks, before);
      before = peak / ranks;
    }
  }
}

TEST_F(SizeOfRanks, IsWhatProcessesTakeEach) {
  const auto probe = run({"launch", "-n", "2", "--", "train", "absent.toml"}, folder_.path());
  if (probe.err.find("install") != std::string::npos) GTEST_SKIP() << "there is no MPI: " << probe.err;
  for (const int zero : {0, 3}) {
    // The launcher's peak is that of the largest process that ended under it: a rank.
    const std::vector<std::string> setting = {zero_setting(zero)};
    EXPECT_NEAR(
        took({"launch", "-n", "2", "--", "train"}, setting) / (said(setting, 2, "as processes of MPI") / 2),
        1, 0.1)
        << "ZeRO-" << zero;
  }
  // The total is for the rank that needs most, without MPI's memory.
  const std::vector<std::string> stages = {"parallel.pipeline=2"};
  const double mpi =
      (said(stages, 2, "as processes of MPI") - said(stages, 2, "stage 0") - said(stages, 2, "stage 1")) / 2;
  EXPECT_NEAR(took({"launch", "-n", "2", "--", "train"}, stages) / (said(stages, 2, "total") + mpi), 1, 0.1);
}

TEST_F(SizeOfRanks, IsWhatMeshesTake) {
  const std::vector<std::pair<int, std::vector<std::string>>> meshes = {
      {2, {"parallel.tensor=2"}},
      {4, {"parallel.tensor=4", "parallel.sequence=true"}},
      {3, {"parallel.tensor=3", "train.dtype=bfloat16"}},  // of 4 heads
      {2, {"parallel.pipeline=2"}},
      {3,
       {"parallel.pipeline=3", "parallel.schedule=gpipe", "train.recompute=block", "model.block_size=256"}},
      {2, {"parallel.pipeline=2", "parallel.stages=2,1", "model.block_size=256"}},
      {8, {"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1"}},
      {8, {"parallel.pipeline=2", "parallel.zero=3", "train.dtype=bfloat16"}},
      {8, {"parallel.tensor=2", "parallel.zero=2", "parallel.replicate=2"}},
      {8, {"parallel.pipeline=2", "parallel.tensor=2", "run.deterministic=layout", "model.block_size=256"}},
  };
  for (const auto& [ranks, settings] : meshes) {
    const auto n = std::to_string(ranks);
    const double estimate = said(settings, ranks, n + " ranks on one host");
    // A run takes less where its ranks' peaks do not fall together, so the largest of some runs counts.
    double peak = 0;
    for (int attempt = 0; attempt < 4 && peak < 0.9 * estimate; ++attempt)
      peak = std::max(peak, took({"train", "--ranks", n}, settings));
    EXPECT_NEAR(peak / estimate, 1, 0.1) << testing::PrintToString(settings);
  }
}

TEST(Size, OfAMeshNamesItsStages) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kSizedConfig);
  const auto of = [&](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"size", "gpt2.toml", "model.preset=gpt2", "train.micro_batch=1"});
    return run(settings, folder.path());
  };
  const auto result = of({"parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true",
                          "parallel.stages=5,7", "parallel.zero=1", "--ranks", "8"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("on the one of 8 ranks that needs most"));
  EXPECT_THAT(result.out, HasSubstr("2 stages x 2 data x 2 tensor ranks with sequence parallelism"));
  EXPECT_THAT(result.out,
              HasSubstr("of its part of the model, moments and master weights sharded over 2 data ranks"));
  EXPECT_THAT(result.out, testing::ContainsRegex("stage 0 .* embedding, block.0-4"));
  EXPECT_THAT(result.out, testing::ContainsRegex("stage 1 .* block.5-11, head"));
  EXPECT_DOUBLE_EQ(bytes_of(result.out, "total"),
                   std::max(bytes_of(result.out, "stage 0"), bytes_of(result.out, "stage 1")));
  EXPECT_THAT(of({"parallel.tensor=2", "parallel.pipeline=3"}).out, HasSubstr("on the one of 6 ranks"));
  expect_user_error(of({"parallel.tensor=13"}), "parallel.tensor = 13", "at most 12");
  expect_user_error(of({"parallel.tensor=2", "--ranks", "3"}), "parallel.tensor = 2", "start 2 or 4");
}

// One sequence more would not fit.
TEST(Size, FindsTheLargestBatchThatFits) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kSizedConfig);
  const auto size = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"size", "gpt2.toml", "model.preset=gpt2", "--ranks", "4"});
    const auto result = run(more, folder.path());
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const auto table = size({"--fit", "4GiB"});
  const auto row = table.find("  parallel.zero=3 ");
  ASSERT_NE(row, std::string::npos) << table;
  std::istringstream cells(table.substr(row + 18));
  for (const std::string recompute : {"none", "gelu", "light", "block"}) {
    int batch = 0;
    std::string all;
    cells >> batch >> all;
    EXPECT_EQ(all, "(" + std::to_string(4 * batch) + ")");
    const auto total = [&](int sequences) {
      return bytes_of(size({"parallel.zero=3", "train.recompute=" + recompute,
                            "train.micro_batch=" + std::to_string(sequences),
                            "train.global_batch=" + std::to_string(4 * sequences)}),
                      "total");
    };
    const double limit = 4.05 * 1024 * 1024 * 1024;  // sizes are printed with one decimal
    EXPECT_LE(total(batch), limit) << recompute;
    EXPECT_GE(total(batch + 1), 0.98 * limit) << recompute;
  }
  EXPECT_THAT(size({"--fit", "100MiB"}), HasSubstr("none            none            none            none"));
  const auto bad = run({"size", "gpt2.toml", "--fit", "4kg"}, folder.path());
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("'4kg' is not allowed"));
}

// 1,024 tokens divide over three tensor ranks in steps of three sequences.
TEST(Size, FitsMicroBatchesThatTensorRanksCanDivide) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kSizedConfig);
  const auto result = run({"size", "gpt2.toml", "model.preset=gpt2", "--ranks", "3", "parallel.tensor=3",
                           "parallel.sequence=true", "train.micro_batch=3", "--fit", "16GiB"},
                          folder.path());
  ASSERT_EQ(result.code, 0) << result.err;
  const auto row = result.out.find("  parallel.zero=0 ");
  ASSERT_NE(row, std::string::npos) << result.out;
  std::istringstream cells(result.out.substr(row + 18));
  for (int kind = 0; kind < 4; ++kind) {
    int batch = 0;
    cells >> batch;
    EXPECT_GT(batch, 0) << result.out;
    EXPECT_EQ(batch % 3, 0) << result.out;
  }
}

// All sequences of a step are an int.
TEST(Size, FitsNoMoreSequencesThanAStepCanHave) {
  TempDir folder;
  write_file(folder / "small.toml", kSizedConfig);
  const auto result =
      run({"size", "small.toml", "model.n_layer=1", "model.n_head=1", "model.n_embd=8", "model.block_size=8",
           "model.vocab_size=65", "--ranks", "65536", "train.global_batch=65536", "--fit", "100GiB"},
          folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(count(result.out, "32767 (2147418112)"), 16) << result.out;
}

TEST(SizeTable, ShowsTwelveModelsWithoutAConfig) {
  const auto result = run({"size", "--table", "--ranks", "4"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("block 128, vocabulary 65"));
  EXPECT_THAT(result.out, HasSubstr("memory of a rank of 4"));
  std::istringstream lines(result.out);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
    if (rows.back().empty() || !std::isdigit(static_cast<unsigned char>(rows.back().front()[0])))
      rows.pop_back();
  }
  ASSERT_EQ(rows.size(), 12u) << result.out;
  // Per layer 12 d^2 + 13 d; tokens and positions (65 + 128) d; the final norm 2 d.
  EXPECT_THAT(rows.front(), testing::IsSupersetOf({"8", "512", "25,318,912"}));
  EXPECT_THAT(rows[1], testing::IsSupersetOf({"8", "768", "56,852,736"}));
  EXPECT_THAT(rows[9], testing::IsSupersetOf({"24", "32", "1024", "302,509,056"}));
  EXPECT_THAT(rows.back(), testing::IsSupersetOf({"36", "20", "1280", "708,637,440"}));
}

TEST(SizeTable, TakesAListOfSizes) {
  TempDir folder;
  write_file(folder / "a.toml", kSizedConfig);
  const auto result =
      run({"size", "--sizes", "2/2/32,3/4/64", "a.toml", "model.vocab_size=65"}, folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  // 12 L d^2 + 13 L d, and (65 + 1024 + 2) d.
  EXPECT_THAT(result.out, testing::ContainsRegex(" 2 +2 +32 +60,320 "));
  EXPECT_THAT(result.out, testing::ContainsRegex(" 3 +4 +64 +219,776 "));
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 5 + 2 + 3);
  for (const char* wrong : {"8", "8/8", "8/8/", "8/8/512/1", "0/1/8", "a/b/c", "8/8/512,", "-1/8/512"})
    expect_user_error(run({"size", "--table", "--sizes", wrong}), "--sizes: '", "layers/heads/width");
  expect_user_error(run({"size", "--table", "--sizes", "8/3/512"}), "3 heads", "do not divide");
  expect_user_error(run({"size", "--table", "--sizes", "1001/1/8"}), "model.n_layer", "1001");
}

TEST(SizeTable, TakesAConfigOrSettings) {
  TempDir folder;
  write_file(folder / "a.toml", kSizedConfig);
  const auto with_config = run({"size", "--table", "a.toml", "model.block_size=64"}, folder.path());
  EXPECT_THAT(with_config.out, HasSubstr("block 64, vocabulary 50,257"));
  const auto settings =
      run({"size", "--table", "model.vocab_size=256", "train.dtype=bfloat16"}, folder.path());
  EXPECT_THAT(settings.out, HasSubstr("vocabulary 256"));
  EXPECT_THAT(settings.out, HasSubstr("bfloat16"));
  expect_user_error(run({"size", "--table", "model.vocab_siz=1"}), "model.vocab_size");
  expect_user_error(run({"size"}), "--table");
}

TEST(SizeTable, RefusesABatchThatIsNoInteger) {
  for (const std::string engine : {"gossip", "allreduce"}) {
    expect_user_error(run({"size", "--table", "--ranks", "1048576", "train.micro_batch=4096",
                           "train.global_batch=4096", "parallel.engine=" + engine}),
                      "a batch of 4,294,967,296", "lower --ranks or train.micro_batch");
  }
}

TEST(DryRun, SaysWhatAThousandRanksWouldSendBeforeAnyDataIsThere) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kSizedConfig);
  const std::vector<std::string> arguments = {"train",
                                              "gpt2.toml",
                                              "--dry-run",
                                              "--ranks",
                                              "1024",
                                              "model.preset=gpt2",
                                              "parallel.zero=3",
                                              "train.micro_batch=1",
                                              "train.global_batch=1024",
                                              "--ranks-per-host",
                                              "8"};
  const Stopwatch watch;
  const auto result = run(arguments, folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_LT(watch.seconds(), 10);
  EXPECT_THAT(result.out, HasSubstr("ZeRO-3: everything sharded over 1024 ranks"));
  EXPECT_THAT(result.out, HasSubstr("one step, each of 1024 ranks: 1 micro-batch of 1 x 1024 tokens"));
  // 124.4 M parameters, units padded to 2^20 elements: 492 MiB, nearly all of which a ring passes on.
  EXPECT_THAT(result.out,
              testing::ContainsRegex("gradients +49[0-2][.][0-9] MiB +sent in 14 x reduce_scatter"));
  EXPECT_THAT(result.out, testing::ContainsRegex("rank 0 to 1 "));
  EXPECT_THAT(result.out, testing::ContainsRegex("leaving a host "));
  EXPECT_FALSE(fs::exists(folder / "runs"));
  expect_user_error(run({"train", "gpt2.toml", "--dry-run", "--ranks", "1024"}, folder.path()),
                    "1024 ranks cannot share");
}

TEST(DryRun, SaysWhatEachPlaceOfALargeMeshSends) {
  TempDir folder;
  write_file(folder / "gpt2.toml", kSizedConfig);
  const Stopwatch watch;
  const auto result =
      run({"train", "gpt2.toml", "--dry-run", "--ranks", "1024", "model.preset=gpt2", "parallel.tensor=8",
           "parallel.pipeline=4", "parallel.zero=1", "train.micro_batch=1", "train.global_batch=256"},
          folder.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_LT(watch.seconds(), 10);
  EXPECT_THAT(result.out, HasSubstr("4 stages x 32 data x 8 tensor ranks"));
  // 12 heads are not shared evenly: half of the tensor ranks have one, the others two.
  EXPECT_THAT(result.out,
              HasSubstr("one step, rank 0 and 127 others (pipeline 0, tensor 0, 2, 4, 6): 8 micro"));
  EXPECT_THAT(result.out,
              HasSubstr("one step, rank 1 and 127 others (pipeline 0, tensor 1, 3, 5, 7): 8 micro"));
  EXPECT_THAT(result.out, testing::ContainsRegex("rank 0 to 1 "));
  EXPECT_THAT(result.out, testing::ContainsRegex("tied gradients .* 1 x all_reduce"));
  EXPECT_THAT(result.out, testing::ContainsRegex("statistics .* 24 x all_reduce"));
  EXPECT_THAT(result.out, testing::ContainsRegex("output .* 8 x send"));
}

}  // namespace
}  // namespace shoal::test
