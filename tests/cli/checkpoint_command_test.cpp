// shoal checkpoint, on a tiny run's checkpoint.
#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kConfig = R"(
[data]
dir = "data"
[model]
n_layer = 2
n_head = 2
n_embd = 32
block_size = 16
[train]
global_batch = 4
steps = 2
threads = 1
[eval]
interval = 2
batches = 1
at_start = false
)";

class CheckpointCommand : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "tiny.toml", kConfig);
    ASSERT_EQ(run({"prepare", "synthetic", "--size", "5000", "--out", "data"}, folder_.path()).code, 0);
    ASSERT_EQ(run({"train", "tiny.toml"}, folder_.path()).code, 0);
  }
  Result checkpoint(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all = {"checkpoint"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run(all, folder_.path());
  }
  fs::path shard() const {
    return folder_ / "runs/tiny/checkpoints/step-00000002/shard-00000-of-00001.safetensors";
  }
  TempDir folder_;
};

TEST_F(CheckpointCommand, InspectSaysWhatItHolds) {
  const auto result = checkpoint({"inspect", "runs/tiny"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-00000002\nstep 2, written "));
  EXPECT_THAT(result.out, testing::ContainsRegex("n_embd +32\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("tokens +128\n"));  // 2 steps of 4 x 16
  EXPECT_THAT(result.out, testing::ContainsRegex("best_val_loss +[0-9]"));
  EXPECT_THAT(result.out, testing::ContainsRegex("tokenizer +char\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("{")));  // no JSON
  EXPECT_THAT(result.out,
              testing::ContainsRegex("transformer.h.1.attn.c_attn.weight +float32  .96, 32.  [+] m, v\n"));
  EXPECT_THAT(result.out, HasSubstr(shard().filename().string()));
}

TEST_F(CheckpointCommand, CompareFindsWhatDiffers) {
  ASSERT_EQ(run({"train", "tiny.toml", "run.name=same"}, folder_.path()).code, 0);
  ASSERT_EQ(run({"train", "tiny.toml", "run.name=other", "optim.lr=0.1"}, folder_.path()).code, 0);
  ASSERT_EQ(run({"train", "tiny.toml", "run.name=deeper", "model.n_layer=3"}, folder_.path()).code, 0);

  const auto same = checkpoint({"compare", "runs/tiny", "runs/same"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("the same: "));

  const auto other = checkpoint({"compare", "runs/tiny", "runs/other"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out, testing::ContainsRegex("transformer.wte.weight: .* elements differ, by 0[.]"));
  EXPECT_THAT(other.out,
              testing::ContainsRegex("^runs/tiny and runs/other differ in [0-9]+ of 84 tensors\n"));
  EXPECT_EQ(other.err, "") << "a difference is an answer";

  const auto deeper = checkpoint({"compare", "runs/tiny", "runs/deeper"});
  EXPECT_EQ(deeper.code, 1);
  EXPECT_THAT(deeper.out, HasSubstr("transformer.h.2.ln_1.weight: only in the second"));

  EXPECT_EQ(checkpoint({"compare", "runs/tiny", "runs/none"}).code, 2);

  if (!fs::exists("/dev/full")) return;
  const auto line = fmt::format("cd '{}' && '{}' checkpoint compare runs/tiny runs/other >/dev/full 2>err",
                                folder_.path().string(), SHOAL_BINARY);
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 2);
  EXPECT_THAT(read_file(folder_ / "err"), HasSubstr("cannot write to standard output"));
}

TEST_F(CheckpointCommand, VerifyFindsDamage) {
  const auto whole = checkpoint({"verify", "runs/tiny"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, testing::StartsWith("ok: "));
  EXPECT_THAT(whole.out, HasSubstr(" bytes) read in "));

  auto bytes = read_file(shard());
  bytes[bytes.size() - 5] ^= 1;
  write_file(shard(), bytes);
  expect_user_error(checkpoint({"verify", "runs/tiny/checkpoints/latest"}), shard().filename(), "checksum");
  fs::remove(shard());
  expect_user_error(checkpoint({"verify", "runs/tiny"}), shard().filename());
}

TEST_F(CheckpointCommand, ListShowsEveryCheckpointOfARun) {
  ASSERT_EQ(run({"train", "tiny.toml", "run.name=two", "train.steps=4", "checkpoint.interval=1",
                 "checkpoint.keep=2", "checkpoint.best=false"},
                folder_.path())
                .code,
            0);
  const auto tiny = checkpoint({"list", "runs/tiny"});
  EXPECT_EQ(tiny.code, 0) << tiny.err;
  EXPECT_THAT(tiny.out, testing::StartsWith("runs/tiny/checkpoints\n"));
  EXPECT_THAT(tiny.out, testing::ContainsRegex(
                            " 2  +[0-9][.][0-9]+  +[0-9.]+ KiB  2[0-9-]+ [0-9:]+  whole    latest, best\n"));

  const auto two = checkpoint({"list", "runs/two/checkpoints/", "--verify"});
  EXPECT_THAT(two.out, testing::ContainsRegex(" 3  +-  .*  whole\n"));  // not evaluated
  EXPECT_THAT(two.out, testing::ContainsRegex(" 4  +[0-9][.][0-9]+  .*  whole    latest\n"));

  auto bytes = read_file(shard());
  bytes[bytes.size() - 5] ^= 1;
  write_file(shard(), bytes);
  EXPECT_THAT(checkpoint({"list", "runs/tiny"}).out, HasSubstr("whole")) << "sizes are right";
  EXPECT_THAT(checkpoint({"list", "runs/tiny", "--verify"}).out,
              testing::ContainsRegex(" 2  .*damaged  latest, best\ndamaged: .*shard-00000"));
  fs::resize_file(shard(), 100);
  EXPECT_THAT(checkpoint({"list", "runs/tiny"}).out, HasSubstr("has 100 bytes"));
  expect_user_error(checkpoint({"list", "runs/none"}), "there is no run at runs/none");
  expect_user_error(checkpoint({"list", "data"}), "data holds no checkpoint");
}

TEST_F(CheckpointCommand, SaysWhatIsMissing) {
  expect_user_error(checkpoint({}), "inspect", "verify");
  expect_user_error(checkpoint({"inspekt", "runs/tiny"}), "inspekt", "inspect");
  expect_user_error(checkpoint({"inspect"}), "DIR");
  expect_user_error(checkpoint({"verify", "runs/none"}), "runs/none");
}

}  // namespace
}  // namespace shoal::test
