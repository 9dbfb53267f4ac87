// Checkpoints of gossip runs: read as the mean of the workers, and averaged into one model.
#include <fmt/format.h>

#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

double last_number_after(const std::string& words, const std::string& text) {
  const auto at = text.rfind(words);
  return at == std::string::npos ? 0 : std::strtod(text.c_str() + at + words.size(), nullptr);
}

class Workers : public TinyRuns {
 protected:
  static Settings gossip(const Settings& more = {}) {
    Settings all = {"--ranks",
                    "4",
                    "run.name=gossip",
                    "parallel.engine=gossip",
                    "train.micro_batch=1",
                    "train.steps=5",
                    "eval.batches=0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Result average(const std::string& out = "average") const {
    return shoal({"checkpoint", "average", "runs/gossip", "--out", out});
  }
  Result eval(const std::string& checkpoint) const { return shoal({"eval", "--checkpoint", checkpoint}); }
};

// Workers of one rank, of two that share its state, of two tensor ranks, of two stages.
TEST_F(Workers, TheirMeanIsWhatIsEvaluatedAndAveraged) {
  const std::vector<Settings> kinds = {
      {}, {"gossip.worker_size=2", "parallel.zero=3"}, {"parallel.tensor=2"}, {"parallel.pipeline=2"}};
  for (const auto& kind : kinds) {
    SCOPED_TRACE(testing::PrintToString(kind));
    fs::remove_all(file("runs"));
    fs::remove_all(file("average"));
    const auto trained = train(gossip(kind));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const int workers = kind.empty() ? 4 : 2;
    const auto mean = fmt::format("mean of {} workers' models", workers);

    const auto made = average();
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_THAT(made.out, AllOf(HasSubstr("average: the " + mean), HasSubstr("after step 5")));
    EXPECT_EQ(shoal({"checkpoint", "verify", "average"}).code, 0);

    const auto of_workers = eval("runs/gossip"), of_average = eval("average");
    EXPECT_EQ(of_workers.code, 0) << of_workers.err;
    EXPECT_THAT(of_workers.err, HasSubstr(mean));
    EXPECT_EQ(of_average.err, "");
    EXPECT_EQ(of_workers.out, of_average.out);
    // The run evaluated a mean that was summed in float32 in another order. Its parameters, with a norm of
    // about 10, differ by a few 2^-24 of themselves, and the loss by at most that times the gradient's norm,
    // about 1. Both are printed with six decimals.
    EXPECT_NEAR(last_number_after("loss        ", of_average.out),
                last_number_after("Val loss: ", trained.err), 5e-6);
    EXPECT_GT(last_number_after("Val loss: ", trained.err), 1);
  }
}

TEST_F(Workers, TheirMeanSamplesExportsAndStartsRuns) {
  train_well(gossip());
  ASSERT_EQ(average().code, 0);
  std::vector<std::string> texts, exports, starts;
  for (const std::string from : {"runs/gossip", "average"}) {
    texts.push_back(shoal({"sample", "--checkpoint", from, "--max-tokens", "20"}).out);
    const auto out = "hf-" + fs::path(from).filename().string();
    EXPECT_EQ(shoal({"export", "--checkpoint", from, "--out", out}).code, 0);
    exports.push_back(read_file(file(out) / "model.safetensors"));
    const auto name = "from-" + fs::path(from).filename().string();
    train_well({"train.steps=2", "run.name=" + name, "init.from=checkpoint:" + from});
    starts.push_back(final_state(name));
  }
  EXPECT_GT(texts[0].size(), 10u);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_GT(exports[0].size(), 1000u);
  EXPECT_EQ(exports[0], exports[1]);
  EXPECT_EQ(starts[0], starts[1]);
}

TEST_F(Workers, AreShownOnceForAll) {
  train_well(gossip());
  const auto shown = shoal({"checkpoint", "inspect", "runs/gossip"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(ContainsRegex("4 workers with [0-9,]+ elements in 84 tensors each"),
                               HasSubstr("tensors, of every worker as worker.0.NAME and so on (+ m, v"),
                               ContainsRegex("\n  transformer.wte.weight +float32  .48, 16.  [+] m, v\n"),
                               Not(HasSubstr("worker.0.transformer"))));
  EXPECT_THAT(shoal({"checkpoint", "verify", "runs/gossip"}).out, HasSubstr("4 workers with "));

  ASSERT_EQ(average().code, 0);
  const auto other = shoal({"checkpoint", "compare", "runs/gossip", "average"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, AllOf(HasSubstr("4 workers' models"), HasSubstr("of one model")));
  EXPECT_EQ(shoal({"checkpoint", "compare", "runs/gossip", "runs/gossip"}).code, 0);
}

TEST_F(Workers, AnAverageOverwritesNothingAndNeedsWorkers) {
  train_well(gossip());
  train_well({"train.steps=1", "run.name=one"});
  write_file(file("mine/notes.txt"), "keep");
  write_file(file("file"), "keep");
  expect_user_error(average("mine"), "mine is not empty", "--out");
  expect_user_error(average("file"), "file is not a folder");
  expect_user_error(shoal({"checkpoint", "average", "runs/one", "--out", "new"}), "of one model already");
  expect_user_error(shoal({"checkpoint", "average", "runs/none", "--out", "new"}), "runs/none");
  expect_user_error(shoal({"checkpoint", "average", "runs/gossip"}), "--out");
  EXPECT_EQ(read_file(file("mine/notes.txt")), "keep");
  EXPECT_FALSE(fs::exists(file("new")));
  EXPECT_FALSE(fs::exists(file("new.partial")));
  // Files left by a killed process cause no error.
  write_file(file("new.partial/.step-00000005.0.partial/shard-00000-of-00001.safetensors"), "half");
  EXPECT_EQ(average("new").code, 0);
  EXPECT_FALSE(fs::exists(file("new.partial")));
}

}  // namespace
}  // namespace shoal::test
