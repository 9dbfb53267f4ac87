// Meshes of pipeline x data x tensor ranks as a user starts them: results, resuming in another mesh, and the
// errors for impossible meshes.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/tiny_runs.h"
#include "comm/mpirun.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Layout {
  int pipeline = 1, data = 1, tensor = 1;
  bool sequence = false;
  int zero = 0;
  std::string schedule = "1f1b";
  int ranks() const { return pipeline * data * tensor; }
  // The settings that determine the bytes of a run.
  bool same_sums(const Layout& other) const { return tensor == other.tensor && sequence == other.sequence; }
  std::string name() const {
    return fmt::format("{}x{}x{}{}zero{}{}", pipeline, data, tensor, sequence ? "seq" : "", zero, schedule);
  }
  std::vector<std::string> settings() const {
    return {"--ranks",
            std::to_string(ranks()),
            fmt::format("parallel.pipeline={}", pipeline),
            fmt::format("parallel.tensor={}", tensor),
            fmt::format("parallel.sequence={}", sequence),
            fmt::format("parallel.zero={}", zero),
            fmt::format("parallel.schedule={}", schedule),
            fmt::format("parallel.chunks={}", schedule == "interleaved" ? 2 : 1)};
  }
};

// Four blocks and heads, eight micro-batches, clipping that acts.
const std::vector<std::string> kMesh = {
    "model.n_layer=4",          "model.n_head=4",       "train.global_batch=8", "train.micro_batch=1",
    "run.deterministic=layout", "train.grad_clip=0.5",  "optim.lr=1e-3",        "log.interval=1",
    "eval.interval=3",          "checkpoint.interval=0"};

// Bound for the difference between the losses of a tensor group's run of six steps and those of one rank. By
// the error model of tests/parallel/mesh_parity_test.cpp with these sizes, sums of about 3 (4 (10 * 16 + 16)
// + 2 * 16 + 48) + 8 = 2360 terms give a gradient a relative error of 2^-24 sqrt(2360) = 3e-6. Six steps with
// a learning rate of 1e-3 and norms below 2 turn it into 7e-8 of the loss. A loss of 4 is a float32 sum of
// four terms, off by 16 * 2^-24 = 1e-6.
constexpr double kBound = 1.1e-6;

class Meshes : public TinyRuns {
 protected:
  void train_in(const Layout& layout, const std::string& name, int steps, const Settings& more = {}) const {
    const Settings these = {"run.name=" + name, fmt::format("train.steps={}", steps)};
    train_well(with(with(with(kMesh, layout.settings()), these), more));
  }
  // The values of a number in the lines of a run's metrics, by step.
  std::map<int, double> metric(const std::string& name, const std::string& key) const {
    std::map<int, double> values;
    std::istringstream lines(read_file(file("runs") / name / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto record = nlohmann::json::parse(line);
      if (record.contains(key)) values[record["step"]] = record[key];
    }
    return values;
  }
  void expect_near(const std::string& name, const std::string& other, double bound) const {
    for (const auto* key : {"loss", "val_loss"}) {
      const auto values = metric(name, key), others = metric(other, key);
      ASSERT_EQ(values.size(), others.size());
      for (const auto& [step, value] : values)
        EXPECT_NEAR(value, others.at(step), bound)
            << name << ", " << other << ", " << key << ", step " << step;
    }
  }
};

TEST_F(Meshes, EndAsOneRankDoes) {
  train_in({}, "one", 6);
  train_in({.tensor = 2}, "two", 6);
  train_in({.tensor = 2, .sequence = true}, "sequence", 6);
  train_in({.pipeline = 4, .data = 2, .zero = 2}, "pipeline", 6);
  train_in({.pipeline = 2, .data = 2, .tensor = 2, .schedule = "interleaved"}, "mesh", 6);
  train_in({.pipeline = 2, .data = 2, .tensor = 2, .sequence = true, .zero = 3}, "full", 6);
  expect_same("pipeline", "one");
  expect_same("mesh", "two");
  expect_same("full", "sequence");
  for (const std::string name : {"two", "sequence"}) expect_near(name, "one", kBound);
  EXPECT_NE(shoal({"checkpoint", "compare", "runs/two", "runs/one"}).code, 0) << "what is left to show?";
}

// The head's matrix is on the last stage alone, and nothing is added between the stages.
TEST_F(Meshes, WithAnUntiedHeadEndAsOneRankDoes) {
  const Settings untied = {"model.tie_embeddings=false"};
  train_in({}, "one", 6, untied);
  train_in({}, "tied", 6);
  train_in({.tensor = 2, .sequence = true}, "two", 6, untied);
  train_in({.pipeline = 2, .data = 2, .zero = 3}, "pipeline", 6, untied);
  train_in({.pipeline = 2, .data = 2, .tensor = 2, .sequence = true, .zero = 1, .schedule = "interleaved"},
           "mesh", 3, untied);
  train_in({.tensor = 2, .sequence = true}, "mesh", 6, with(untied, {"init.from=resume"}));
  expect_same("pipeline", "one");
  expect_same("mesh", "two");
  expect_near("two", "one", kBound);
  EXPECT_NE(metric("tied", "loss").at(6), metric("one", "loss").at(6));
}

// The log shows the mesh at the start.
TEST_F(Meshes, AreDescribed) {
  train_in({.pipeline = 2, .data = 2, .tensor = 2}, "mesh", 1);
  const auto log = read_file(file("runs/mesh/train.log"));
  EXPECT_THAT(log, HasSubstr("2 stages x 2 data x 2 tensor ranks"));
  EXPECT_THAT(log, HasSubstr("stage 1: block.2-3, head"));
}

// A learning rate that is zero in float32 leaves the parameters unchanged; the moments are those of the first
// step.
TEST_F(Meshes, BeginWithTheSameParameters) {
  const Settings still = {"optim.lr=1e-60"};
  train_in({}, "one", 1, still);
  for (const Layout& layout :
       {Layout{.pipeline = 4, .data = 2, .zero = 3}, Layout{.tensor = 4, .sequence = true},
        Layout{.pipeline = 2, .data = 1, .tensor = 3}}) {
    train_in(layout, layout.name(), 1, still);
    const auto result = shoal({"checkpoint", "compare", "runs/one", "runs/" + layout.name()});
    EXPECT_THAT(result.out, Not(HasSubstr("\ntransformer."))) << layout.name();
    EXPECT_THAT(result.out, Not(testing::StartsWith("transformer."))) << layout.name();
  }
}

// Three steps in one mesh and three in another, for random pairs of meshes.
TEST_F(Meshes, GoOnInOthers) {
  std::mt19937 draw(4);  // NOLINT(cert-msc51-cpp): the same pairs every time
  const auto below = [&](int n) { return static_cast<int>(draw() % static_cast<unsigned>(n)); };
  const auto random = [&] {
    for (;;) {
      Layout layout{
          .pipeline = 1 + below(4),
          .data = 1 + below(4),
          .tensor = 1 << below(3),
          .sequence = below(2) == 1,
          .zero = below(4),
          .schedule = std::array{"gpipe", "1f1b", "interleaved"}[static_cast<std::size_t>(below(3))]};
      if (layout.tensor == 1) layout.sequence = false;
      if (layout.pipeline != 2 && layout.schedule == "interleaved") continue;
      if (layout.ranks() > 1 && layout.ranks() <= 8) return layout;
    }
  };
  train_in({}, "one", 6);
  std::vector<std::string> known;
  int exact = 0;
  for (int pair = 0; pair < 12; ++pair) {
    const auto first = random(), second = random();
    SCOPED_TRACE(first.name() + " then " + second.name());
    const auto name = fmt::format("pair{}", pair);
    train_in(first, name, 3);
    train_in(second, name, 6, {"init.from=resume"});
    if (!first.same_sums(second)) {
      expect_near(name, "one", kBound);
      continue;
    }
    ++exact;
    const Layout plain{.tensor = first.tensor, .sequence = first.sequence};
    if (std::find(known.begin(), known.end(), plain.name()) == known.end()) {
      train_in(plain, plain.name(), 6);
      known.push_back(plain.name());
    }
    expect_same(name, plain.name());
  }
  EXPECT_GE(exact, 3);
  EXPECT_LE(exact, 9);
}

// The blocks that stages recompute are counted for these stages alone.
TEST_F(Meshes, WhoseStagesRecomputeAreEvaluatedAndSampled) {
  train_in({.pipeline = 2}, "stages", 2, {"train.recompute=block", "train.recompute_blocks=[1,1]"});
  train_in({}, "one", 2);
  const auto loss = [&](const std::string& name) {
    const auto result = shoal({"eval", "--checkpoint", "runs/" + name});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(result.out.find("loss"));
  };
  EXPECT_EQ(loss("stages"), loss("one"));
  EXPECT_EQ(shoal({"sample", "--checkpoint", "runs/stages", "--max-tokens", "3"}).code, 0);
}

TEST_F(Meshes, EvaluateAsOneRankDoes) {
  train_in({.pipeline = 2, .tensor = 2}, "run", 3);
  const Settings eval = {"eval", "--checkpoint", "runs/run", "train.threads=1"};
  const auto on = [&](const Settings& more) {
    const auto result = shoal(with(eval, more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  // Losses are printed with six digits; rounding may change the last one.
  const auto loss = [](const std::string& text) { return std::stod(text.substr(text.find("loss") + 4)); };
  const auto one = on({"--ranks", "1", "parallel.pipeline=1", "parallel.tensor=1"});
  EXPECT_EQ(on({"--ranks", "6", "parallel.pipeline=3", "parallel.tensor=1"}), one);
  const auto group = on({"--ranks", "4", "parallel.tensor=4", "parallel.pipeline=1"});
  EXPECT_NEAR(loss(group), loss(one), 1e-6 + kBound);
}

TEST_F(Meshes, ThatCannotBeAreRefused) {
  const auto refused = [&](const Settings& settings, const auto&... words) {
    expect_user_error(train(with(kMesh, settings)), words...);
  };
  refused({"--ranks", "8", "parallel.tensor=8"}, "parallel.tensor = 8", "4 attention heads", "at most 4");
  refused({"--ranks", "8", "parallel.pipeline=8"}, "parallel.pipeline = 8", "model.n_layer = 4", "at most 4");
  refused({"--ranks", "6", "parallel.pipeline=2", "parallel.tensor=2"}, "multiple of 4 ranks", "6 ranks");
  refused({"--ranks", "2", "parallel.data=2", "parallel.tensor=2"}, "parallel.data = 2", "4 ranks",
          "set parallel.data=0");
  refused({"--ranks", "3", "parallel.tensor=3", "parallel.sequence=true"}, "parallel.sequence", "16 tokens",
          "parallel.tensor = 3", "train.micro_batch");
  refused({"--ranks", "2", "parallel.pipeline=2", "parallel.chunks=2"}, "parallel.chunks = 2",
          "parallel.schedule = \"interleaved\"");
  refused({"--ranks", "2", "parallel.pipeline=2", "parallel.schedule=interleaved"}, "parallel.chunks=2");
  refused({"--ranks", "2", "parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=3"},
          "6 ranges", "at most 4");
  refused({"--ranks", "2", "parallel.pipeline=2", "parallel.schedule=best"}, "parallel.schedule", "gpipe");
  refused({"--ranks", "16", "parallel.tensor=1", "parallel.pipeline=1"},
          "16 ranks cannot share the 8 sequences");
  refused({"--ranks", "4", "parallel.pipeline=0"}, "parallel.pipeline = 0");
  EXPECT_FALSE(fs::exists(file("runs")));
}

// All ranks skip the step, whichever stage has the bad loss, and the run can be resumed.
TEST_F(Meshes, ABadStepStopsAllAlike) {
  const Layout layout{.pipeline = 2, .data = 1, .tensor = 2};
  train_in(layout, "run", 3);
  const Settings on = {"run.name=run", "train.steps=9", "init.from=resume"};
  const auto settings = with(with(kMesh, layout.settings()), on);
  const auto result = train(with(settings, {"optim.lr=1e30", "lr_schedule.min_lr=0"}));
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("is not finite"));
  EXPECT_THAT(result.err, HasSubstr("is untouched; resume from it"));
  EXPECT_THAT(result.err, HasSubstr("first tensor that is not finite: the gradient of transformer."));
  train_well(settings);
}

// When a process dies in the middle of a step, the others end soon, and all saved checkpoints are complete.
TEST_F(Meshes, AKilledRankEndsAll) {
  if (const auto why = lacks(Mpi::open_mpi, fs::path(SHOAL_BINARY).parent_path()); !why.empty())
    GTEST_SKIP() << why;
  const Layout layout{.pipeline = 2, .data = 1, .tensor = 2};
  const Settings length = {"run.name=run", "train.steps=100000", "checkpoint.interval=5"};
  auto settings = with(with(kMesh, layout.settings()), length);
  settings.erase(settings.begin() + std::ssize(kMesh), settings.begin() + std::ssize(kMesh) + 2);  // --ranks
  auto command = mpirun(Mpi::open_mpi, 4);
  // Rank 2 writes its process id.
  command.insert(command.end(),
                 {"-wdir", folder_.path().string(), "/bin/sh", "-c",
                  "[ \"$OMPI_COMM_WORLD_RANK\" = 2 ] && echo $$ >pid; exec \"$0\" \"$@\"", SHOAL_BINARY});
  MpiJob job(with(command, train_command(settings)));
  ASSERT_TRUE(eventually([&] { return fs::exists(file("runs/run/checkpoints/step-00000010")); }))
      << job.err();
  ::kill(std::stoi(read_file(file("pid"))), SIGKILL);
  const double killed = job.seconds();
  const auto result = job.wait();
  EXPECT_NE(result.code, 0);
  EXPECT_LT(result.seconds - killed, 10);
  EXPECT_EQ(shoal({"checkpoint", "verify", "runs/run"}).code, 0);
}

}  // namespace
}  // namespace shoal::test
