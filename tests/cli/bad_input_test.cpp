// Mistakes of a user before a run: every error names the mistake, its place and a fix, and no data is lost.
#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class BadData : public TinyRuns {
 protected:
  std::string train_bin() const { return read_file(file("data/train.bin")); }
  void expect_refused(const std::string& word, const std::string& other = "",
                      const Settings& settings = {}) const {
    expect_user_error(train(settings), word, other);
    EXPECT_FALSE(fs::exists(file("runs")));
  }
};

TEST_F(BadData, MissingFolder) { expect_refused("nowhere", "shoal prepare", {"data.dir=nowhere"}); }

TEST_F(BadData, MissingFile) {
  fs::remove(file("data/val.bin"));
  expect_refused("data/val.bin: no such token file", "shoal prepare");
}

TEST_F(BadData, EmptyFile) {
  write_file(file("data/train.bin"), "");
  expect_refused("data/train.bin: the file is empty", "prepare");
}

TEST_F(BadData, TruncatedFile) {
  write_file(file("data/train.bin"), train_bin().substr(0, 1000));
  expect_refused("data/train.bin: holds 500 tokens, but meta.json promises", "prepare it again");
}

TEST_F(BadData, OddSize) {
  write_file(file("data/train.bin"), train_bin() + "x");
  expect_refused("data/train.bin: ", "no multiple of 2");
}

TEST_F(BadData, AFolderInAFilesPlace) {
  fs::remove(file("data/train.bin"));
  fs::create_directory(file("data/train.bin"));
  expect_refused("cannot read data/train.bin: it is not a regular file");
}

TEST_F(BadData, IdsPastTheVocabulary) {
  auto bytes = train_bin();
  bytes[2 * 1234 + 1] = '\x7f';
  write_file(file("data/train.bin"), bytes);
  expect_refused("data/train.bin: token ", "at position 1,234 is past the vocabulary of");
  expect_refused("model.vocab_size", "smaller than the vocabulary", {"model.vocab_size=5"});
  fs::remove(file("data/meta.json"));
  expect_refused("data/train.bin: token ", "vocabulary of 20", {"model.vocab_size=20"});
}

TEST_F(BadData, ASplitShorterThanABlock) {
  expect_refused("data/val.bin has ", "model.block_size = 1000 ", {"model.block_size=1000"});
  expect_refused("data/train.bin has ", "model.block_size = 16 ", {"data.truncate=0.0005"});
}

TEST_F(BadData, DamagedMeta) {
  write_file(file("data/meta.json"), "{");
  expect_refused("data/meta.json: not valid JSON", "prepare the data again");
  write_file(file("data/meta.json"), "{}");
  expect_refused("data/meta.json: lacks the key");
}

using BadSizes = TinyRuns;

TEST_F(BadSizes, ThatDoNotDivide) {
  expect_user_error(train({"model.n_head=3"}), "model.n_head = 3 (argument 'model.n_head=3')",
                    "model.n_embd = 16 (tiny.toml:7)", "e.g. model.n_embd=18");
  expect_user_error(train({"train.micro_batch=3"}), "train.micro_batch = 3",
                    "train.global_batch = 4 (tiny.toml:11)", "e.g. train.micro_batch=2");
}

TEST_F(BadSizes, ThatAreAbsurd) {
  for (const Settings& settings : {Settings{"model.n_layer=1000", "model.n_embd=1048576"},
                                   Settings{"train.global_batch=2000000000", "train.micro_batch=2000000000"},
                                   Settings{"model.n_layer=1000", "model.n_embd=1048576",
                                            "train.global_batch=2000000000", "train.micro_batch=2000000000"},
                                   Settings{"model.vocab_size=1073741824", "model.n_embd=65536"}}) {
    const auto start = std::chrono::steady_clock::now();
    expect_user_error(train(settings), "needs", "of memory", "available", "lower");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // under sanitizers too
    EXPECT_FALSE(fs::exists(file("runs")));
  }
}

TEST_F(BadSizes, AWarmupLongerThanTheEpochs) {
  expect_user_error(train({"train.steps=0", "train.epochs=1", "data.sampling=epochs",
                           "lr_schedule.warmup_steps=100000", "lr_schedule.decay_steps=0"}),
                    "lr_schedule.warmup_steps = 100000", "longer than the run");
}

class BadFolders : public TinyRuns {};

TEST_F(BadFolders, ARunDirectoryThatCannotBeMade) {
  write_file(file("occupied"), "");
  expect_user_error(train({"run.dir=occupied"}), "occupied/tiny", "Not a directory");
  expect_user_error(train({"run.dir=/proc"}), "/proc/tiny");
}

TEST_F(BadFolders, ARunThatMayNotBeWritten) {
  fs::create_directories(file("runs/tiny/.lock"));  // a folder, which cannot be opened as lock file
  expect_user_error(train(), "cannot write to the run directory runs/tiny");
}

TEST_F(BadFolders, ANewRunOverAnOldOne) {
  train_well();
  const auto before = contents("runs");
  expect_user_error(train(), "runs/tiny already holds a run", "init.from=resume", "run.name");
  EXPECT_EQ(contents("runs"), before);
}

TEST_F(BadFolders, NothingToResume) {
  expect_user_error(train({"init.from=resume"}), "runs/tiny holds no checkpoint",
                    "start the run with init.from=scratch");
  train_well();
  fs::remove_all(file("runs/tiny/checkpoints"));
  expect_user_error(train({"init.from=resume"}), "remove the folder", "init.from=scratch");
  const auto refused = train();
  expect_user_error(refused, "runs/tiny already holds a run that saved no checkpoint", "init.from=auto");
  EXPECT_THAT(refused.err, Not(HasSubstr("init.from=resume")));
  train_well({"init.from=auto"});
}

// Not that the data were prepared anew, which init.other_data would allow.
TEST_F(BadFolders, AResumeWithAnotherShareOfTheDataNamesTheKey) {
  train_well();
  expect_user_error_at_the_end(train({"init.from=resume", "data.truncate=0.9"}),
                               "data.truncate = 0.9 (the checkpoint has 1.0)", "set these keys back");
}

class BadCheckpoint : public TinyRuns {
 protected:
  static constexpr const char* kCheckpoint = "runs/tiny/checkpoints/step-00000020";
  static constexpr const char* kShard =
      "runs/tiny/checkpoints/step-00000020/shard-00000-of-00001.safetensors";
  static constexpr const char* kManifest = "runs/tiny/checkpoints/step-00000020/manifest.json";

  BadCheckpoint() { train_well(); }

  // Resuming, evaluating, sampling and starting from the checkpoint all fail with these words.
  void expect_refused(const std::string& where, const std::string& what) const {
    const auto before = contents("runs/tiny/checkpoints");
    const auto measured = read_file(file("runs/tiny/metrics.jsonl"));
    const std::string checkpoint = kCheckpoint;
    expect_user_error_at_the_end(train({"init.from=resume", "train.steps=30"}), where, what);
    expect_user_error_at_the_end(train({"init.from=checkpoint:" + checkpoint, "run.name=other"}), where,
                                 what);
    expect_user_error_at_the_end(shoal({"eval", "--checkpoint", "runs/tiny", "train.threads=1"}), where,
                                 what);
    expect_user_error_at_the_end(shoal({"sample", "--checkpoint", checkpoint, "--max-tokens", "1"}), where,
                                 what);
    EXPECT_EQ(contents("runs/tiny/checkpoints"), before);
    EXPECT_EQ(read_file(file("runs/tiny/metrics.jsonl")), measured);
  }
};

TEST_F(BadCheckpoint, TruncatedShard) {
  fs::resize_file(file(kShard), fs::file_size(file(kShard)) - 1);
  expect_refused("shard-00000-of-00001.safetensors has ", "it was written with");
}

TEST_F(BadCheckpoint, DamagedShard) {
  auto bytes = read_file(file(kShard));
  bytes[bytes.size() / 4] ^= 1;  // within the parameters, which come first
  write_file(file(kShard), bytes);
  expect_refused("shard-00000-of-00001.safetensors is damaged", "checksum");
}

TEST_F(BadCheckpoint, MissingShard) {
  fs::remove(file(kShard));
  expect_refused("shard-00000-of-00001.safetensors cannot be read", "No such file");
}

TEST_F(BadCheckpoint, DamagedManifest) {
  auto text = read_file(file(kManifest));
  const auto at = text.find("\"step\": 20");
  ASSERT_NE(at, std::string::npos) << text;
  write_file(file(kManifest), text.replace(at, 10, "\"step\": 21"));
  expect_refused("manifest.json", "changed");
}

TEST_F(BadCheckpoint, MissingManifest) {
  fs::remove(file(kManifest));
  expect_refused("step-00000020", "manifest.json is missing");
}

// The fix: after the damaged checkpoint is moved away, the run resumes from the previous one, to the same
// result.
TEST_F(BadCheckpoint, AnEarlierOneIsStillGood) {
  const auto end = final_state("tiny");
  fs::remove(file(kShard));
  fs::remove_all(file(kCheckpoint));
  train_well({"init.from=resume"});
  EXPECT_EQ(final_state("tiny"), end);
}

TEST_F(BadCheckpoint, OfAnotherModel) {
  const auto before = contents("runs");
  const auto result = train({"init.from=resume", "model.n_embd=32", "model.bias=false", "run.seed=2",
                             "train.steps=30", "optim.lr=1e-3"});
  expect_user_error_at_the_end(result, "step-00000020", "model.n_embd = 32 (the checkpoint has 16)",
                               "model.bias = false (the checkpoint has true)",
                               "run.seed = 2 (the checkpoint has 1337)", "run.name");
  EXPECT_THAT(result.err.substr(result.err.find("shoal: error: ")), Not(HasSubstr("optim.lr")));
  EXPECT_EQ(contents("runs"), before);

  expect_user_error(shoal({"eval", "--checkpoint", "runs/tiny", "model.n_embd=32"}),
                    "model.n_embd = 32 is fixed by the checkpoint");
  expect_user_error(shoal({"eval", "--checkpoint", "runs/absent"}), "no checkpoint at runs/absent");
  expect_user_error(shoal({"eval", "--checkpoint", "runs/tiny", "--split", "test"}), "test");
  expect_user_error(shoal({"eval", "--checkpoint", "runs/tiny", "data.dir=absent"}), "absent");
}

}  // namespace
}  // namespace shoal::test
