// shoal plan, shoal calibrate and runs that plan themselves, as a user runs them. Times of this machine are
// measured, so tests look at what is printed and kept, not at which layout wins.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/run.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kPlannedConfig = R"(
[data]
dir = "data"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 16
[train]
global_batch = 8
steps = 60
[log]
interval = 1
[eval]
interval = 0
at_start = false
)";

class Planning : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "tiny.toml", kPlannedConfig);
    ASSERT_EQ(shoal({"prepare", "synthetic", "--out", "data", "--size", "20000"}).code, 0);
  }
  Result shoal(const std::vector<std::string>& arguments) {
    return run(arguments, folder_.path(), {"XDG_CACHE_HOME=" + (folder_ / "cache").string()});
  }
  static std::string cluster() { return std::string(SHOAL_SOURCE_DIR) + "/configs/clusters/a100.toml"; }
  TempDir folder_;
};

TEST_F(Planning, RanksLayoutsAndSaysWhy) {
  const auto result = shoal({"plan", "tiny.toml", "--ranks", "2", "train.micro_batch=2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("2 ranks on this machine"), HasSubstr("best: "),
                                HasSubstr("shoal train tiny.toml --ranks 2")));
  EXPECT_THAT(result.err, HasSubstr("measuring: "));
  EXPECT_THAT(shoal({"plan", "tiny.toml", "--ranks", "2", "train.micro_batch=2"}).err,
              Not(HasSubstr("measuring")))
      << "measurements are kept";
  EXPECT_THAT(shoal({"plan", "tiny.toml", "--ranks", "2", "--cluster", cluster()}).out,
              AllOf(HasSubstr("parallel.zero=1"), HasSubstr("faster than the next")));
}

TEST_F(Planning, PrintsTheCommandOfTheFastestRun) {
  const auto command_for = [&](const char* ranks, const std::vector<std::string>& settings) {
    std::vector<std::string> arguments = {"plan", "tiny.toml", "--ranks", ranks, "--cluster", cluster()};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const auto out = shoal(arguments).out;
    return out.substr(out.rfind('\n', out.size() - 2) + 1);
  };
  EXPECT_THAT(command_for("2", {"parallel.zero=1", "model.n_embd=64", "optim.frozen=embedding, block.0",
                                "parallel.plan=auto"}),
              AllOf(StartsWith("shoal train tiny.toml --ranks 2 model.n_embd=64 "
                               "'optim.frozen=embedding, block.0' parallel.plan=manual train.backend=cuda "),
                    Not(HasSubstr("auto"))));
  EXPECT_THAT(command_for("16", {"train.global_batch=32"}),
              StartsWith("mpirun -n 16 shoal train tiny.toml train.global_batch=32 train.backend=cuda "))
      << "two hosts";
}

TEST_F(Planning, PrintsJson) {
  const auto result = shoal({"plan", "tiny.toml", "--ranks", "8", "--cluster", cluster(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  const auto two =
      shoal({"plan", "tiny.toml", "--ranks", "8", "--cluster", cluster(), "--json", "--show", "2"});
  EXPECT_EQ(nlohmann::json::parse(two.out)["plans"].size(), 2u);
  double before = 0;
  for (const auto& plan : json["plans"]) {
    const double seconds = plan["step_seconds"];
    EXPECT_GE(seconds, before);
    before = seconds;
    double sum = 0;
    for (const auto& [term, value] : plan["terms"].items()) sum += value.get<double>();
    EXPECT_NEAR(sum, seconds, 1e-9 * seconds);
  }
  EXPECT_GT(json["plans"].size(), 5u);
}

TEST_F(Planning, DrawsTheFastestPlan) {
  const std::vector<std::string> plan = {"plan",      "tiny.toml", "--ranks", "8",
                                         "--cluster", cluster(),   "--svg",   "p.svg"};
  EXPECT_THAT(shoal(plan).out, AllOf(HasSubstr("best: "), HasSubstr("wrote p.svg")));
  auto json = plan;
  json.emplace_back("--json");
  EXPECT_TRUE(nlohmann::json::accept(shoal(json).out));
  EXPECT_THAT(read_file(folder_ / "p.svg"), StartsWith("<svg "));
  auto absent = plan;
  absent.back() = "none/p.svg";
  expect_user_error(shoal(absent), "cannot create none/p.svg: there is no folder none");
}

TEST_F(Planning, ARunPlansItselfAndKeepsItsPlan) {
  std::filesystem::create_directories(folder_ / "runs/tiny");
  write_file(folder_ / "runs/tiny/plan.toml", "");  // of a start that was killed while it wrote the file
  const auto result = shoal(
      {"train", "tiny.toml", "--ranks", "2", "parallel.plan=auto", "train.micro_batch=2", "init.from=auto"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("train.micro_batch=2"), HasSubstr("layouts, "), HasSubstr("predicted")));
  std::stringstream log;  // which is opened after planning
  log << std::ifstream(folder_ / "runs/tiny/train.log").rdbuf();
  EXPECT_THAT(log.str(), AllOf(HasSubstr("INFO] plan: "), HasSubstr("ms per step")));
  const auto again = shoal({"train", "runs/tiny/plan.toml", "run.name=again", "--ranks", "2"});
  ASSERT_EQ(again.code, 0) << again.err;
  const auto losses = [&](const char* name) {
    std::vector<double> all;
    std::ifstream file(folder_ / "runs" / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) all.push_back(json["loss"]);
    }
    return all;
  };
  EXPECT_EQ(losses("tiny").size(), 60u);
  EXPECT_EQ(losses("tiny"), losses("again"));
  const auto check = shoal({"plan", "--check", "runs/tiny"});
  ASSERT_EQ(check.code, 0) << check.err;
  EXPECT_THAT(check.out, AllOf(HasSubstr("measured"), HasSubstr("predicted"), HasSubstr("memory")));
}

// Sums of an exact run depend on its tensor ranks, and gossip on its workers, whatever would be faster now.
TEST_F(Planning, ARunThatGoesOnKeepsWhatItsResultsDependOn) {
  // The log of a run that began with two tensor ranks and goes on with a plan of its own.
  const auto gone_on = [&](const char* ranks, const char* setting) {
    std::vector<std::string> command = {"train", "tiny.toml", "--ranks", ranks, setting};
    for (const char* same : {"lr_schedule.decay_steps=60", "train.threads=1", "train.micro_batch=2",
                             "parallel.zero=0", "parallel.pipeline=1", "parallel.sequence=false"})
      command.push_back(same);
    command.push_back("run.name=of" + std::string(ranks));
    const auto train = [&](const std::vector<std::string>& settings) {
      auto all = command;
      all.insert(all.end(), settings.begin(), settings.end());
      const auto result = shoal(all);
      EXPECT_EQ(result.code, 0) << result.err;
      return result.err;
    };
    train({"parallel.tensor=2", "train.steps=30"});
    return train({"init.from=auto", "parallel.plan=auto"});
  };
  EXPECT_THAT(gone_on("2", "run.deterministic=layout"),
              AllOf(HasSubstr("plan: parallel.tensor=2, as the run has begun"), HasSubstr("resumed from ")));
  EXPECT_THAT(gone_on("4", "parallel.engine=gossip"),
              AllOf(HasSubstr("plan: plan.instance_ranks=2, as the run has begun"),
                    HasSubstr("resumed from "), Not(HasSubstr("the checkpoint is of"))));
}

TEST_F(Planning, OtherCommandsSayThatTheyDoNotPlan) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"size", "tiny.toml"}, {"train", "tiny.toml", "--dry-run"}}) {
    EXPECT_THAT(shoal(command).err, Not(HasSubstr("shoal plan")));
    auto automatic = command;
    automatic.emplace_back("parallel.plan=auto");
    const auto result = shoal(automatic);
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.err, HasSubstr("the layout here is that of the config"));
  }
}

TEST_F(Planning, SaysWhatWouldMakeItFit) {
  const auto result =
      shoal({"plan", "tiny.toml", "--ranks", "2", "--cluster", cluster(), "plan.memory_gib=0.001"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("no layout of 2 ranks fits 1.0 MiB per rank"), HasSubstr("plan.memory_gib=")));
}

TEST_F(Planning, ComparesWithTheStepsOfATable) {
  write_file(folder_ / "steps.csv",
             "gpus,global_batch,micro_batch,n_embd,n_head,n_layer,block_size,tensor,data,pipeline,step_ms\n"
             "8,64,4,2048,16,24,1024,1,8,1,520\n"
             "8,64,4,2048,16,24,1024,8,1,1,1900\n");
  const auto result = shoal({"plan", "--table", "steps.csv", "--cluster", cluster(), "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["rows"], 2);
  EXPECT_EQ(json["workloads"], 1);
  EXPECT_EQ(json["worst_regret"], 0.0);
  for (const char* key : {"median_error", "p90_error", "mean_regret"}) EXPECT_TRUE(json.contains(key)) << key;
}

TEST_F(Planning, Calibrates) {
  const auto result = shoal({"calibrate", "--ranks", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("2 ranks: 4 measurements"), HasSubstr("kept in /")));
  EXPECT_THAT(shoal({"calibrate", "--ranks", "2"}).out, HasSubstr("0 measurements"));
  EXPECT_THAT(shoal({"calibrate", "--ranks", "2", "--again"}).out, HasSubstr("4 measurements"));
  EXPECT_THAT(run({"calibrate", "--ranks", "2"}, folder_.path(), {"XDG_CACHE_HOME=/dev/null"}).out,
              HasSubstr("not kept, since Shoal cannot write to /dev/null/shoal/calibration"));
  EXPECT_THAT(run({"calibrate", "--ranks", "2"}, folder_.path(), {"XDG_CACHE_HOME=", "HOME"}).out,
              HasSubstr("not kept, since neither HOME nor XDG_CACHE_HOME is set"));
}

TEST_F(Planning, AJobOfMpiMeasuresAndPlansItself) {
  if (const auto why = lacks(Mpi::open_mpi, std::filesystem::path(SHOAL_BINARY).parent_path()); !why.empty())
    GTEST_SKIP() << why;
  const auto job = [&](const std::string& arguments) {
    auto command = mpirun(Mpi::open_mpi, 2);
    command.insert(command.end(), {"/bin/sh", "-c",
                                   fmt::format("cd '{}' && exec '{}' {}", folder_.path().string(),
                                               SHOAL_BINARY, arguments)});
    return MpiJob(command, {"XDG_CACHE_HOME=" + (folder_ / "cache").string()}).wait();
  };
  const std::string tight = "train.micro_batch=2 parallel.tensor=1 parallel.pipeline=1";
  const auto plan = job("plan tiny.toml " + tight);
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("2 ranks on this job (2 ranks on 1 host"),
                              HasSubstr("mpirun -n 2 shoal train tiny.toml ")));
  EXPECT_THAT(job("calibrate tiny.toml " + tight).out, HasSubstr("1 measurement in")) << "messages";
  const auto train = job("train tiny.toml parallel.plan=auto " + tight);
  ASSERT_EQ(train.code, 0) << train.err;
  EXPECT_THAT(train.err,
              AllOf(HasSubstr("plan: of 4 layouts, "), HasSubstr("ms per step"), HasSubstr("step 60/60")));
  EXPECT_TRUE(exists(folder_ / "runs/tiny/plan.toml"));
}

TEST_F(Planning, RefusesWhatItCannotPlan) {
  const auto refused = [&](const std::vector<std::string>& arguments) {
    const auto result = shoal(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({"plan", "tiny.toml", "--cluster", "none.toml"}),
              HasSubstr("cannot read the cluster none.toml"));
  write_file(folder_ / "bad.toml", "memory_gib = 80\nspeed = 3\n");
  EXPECT_THAT(refused({"plan", "tiny.toml", "--cluster", "bad.toml"}),
              HasSubstr("bad.toml:2:9: 'speed' is not a key of a cluster"));
  EXPECT_THAT(refused({"plan", "tiny.toml", "--ranks", "4", "plan.instance_ranks=3"}),
              HasSubstr("no layout of 4 ranks satisfies"));
  EXPECT_THAT(refused({"plan", "tiny.toml", "--ranks", "2", "train.backend=cuda"}),
              HasSubstr("one GPU is measured, and several have to be described"));
  ::setenv("SHOAL_CUDA_MODULE", "/nowhere.so", 1);
  EXPECT_THAT(refused({"plan", "tiny.toml", "train.backend=cuda"}),
              HasSubstr("plans for a GPU measure it, but"));
  ::unsetenv("SHOAL_CUDA_MODULE");
  EXPECT_THAT(refused({"plan"}), HasSubstr("plan needs a config"));
  EXPECT_THAT(refused({"plan", "--check", "runs/tiny", "--json"}),
              AllOf(HasSubstr("--check"), HasSubstr("--json")));
  write_file(folder_ / "steps.csv", "gpus,global_batch\n1,2\n");
  EXPECT_THAT(refused({"plan", "--table", "steps.csv", "--cluster", cluster()}),
              HasSubstr("steps.csv:1: the column micro_batch is missing"));
}

}  // namespace
}  // namespace shoal::test
