#include "cli/run.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

constexpr const char* kSmall = R"([data]
dir = "data"

[train]
steps = 10
)";

TEST(ConfigCommand, ExplainsEverySectionOrOne) {
  const auto all = run({"config", "--explain"});
  EXPECT_EQ(all.code, 0);
  for (const auto* section : {"[run]", "[model]", "[optim]", "[gossip]", "[log]"})
    EXPECT_THAT(all.out, HasSubstr(section));
  EXPECT_EQ(run({"config"}).out, all.out);
  const auto one = run({"config", "--explain", "train.dtype"}).out;
  EXPECT_THAT(one, HasSubstr("\"float32\" | \"bfloat16\""));
  EXPECT_THAT(one, testing::Not(HasSubstr("steps")));
  EXPECT_THAT(run({"config", "--explain", "eval"}).out, HasSubstr("eval.interval"));  // not the command
  expect_user_error(run({"config", "--explain", "trian"}), "did you mean train?");
}

TEST(ConfigCommand, DumpReadsBackToItself) {
  TempDir dir;
  write_file(dir / "first.toml", kSmall);
  const auto dump =
      run({"config", "--dump", "first.toml", "optim.lr=3e-4", "--model.preset=gpt-nano"}, dir.path());
  ASSERT_EQ(dump.code, 0) << dump.err;
  EXPECT_THAT(dump.out, HasSubstr("name = \"first\""));
  EXPECT_THAT(dump.out, HasSubstr("lr = 0.0003"));
  EXPECT_THAT(dump.out, HasSubstr("n_embd = 48"));
  write_file(dir / "again.toml", dump.out);
  EXPECT_EQ(run({"config", "--dump", "again.toml"}, dir.path()).out, dump.out);
  const auto commented = run({"config", "--dump", "again.toml", "--comments"}, dir.path());
  EXPECT_THAT(commented.out, HasSubstr("# Folder made by"));
  write_file(dir / "commented.toml", commented.out);
  EXPECT_EQ(run({"config", "--dump", "commented.toml"}, dir.path()).out, dump.out);
}

TEST(ConfigCommand, ErrorsNameFileLineAndArgument) {
  TempDir dir;
  write_file(dir / "bad.toml", std::string(kSmall) + "\n[optim]\nlearning_rate = 1\n");
  expect_user_error(run({"config", "--dump", "bad.toml"}, dir.path()), "bad.toml:8:", "optim.learning_rate");
  write_file(dir / "good.toml", kSmall);
  expect_user_error(run({"config", "--dump", "good.toml", "optim.l=1"}, dir.path()), "argument 'optim.l=1'",
                    "did you mean optim.lr?");
  write_file(dir / "bare.toml", "[train]\nsteps = ten # of them\n");
  expect_user_error(run({"config", "--dump", "bare.toml"}, dir.path()),
                    "bare.toml:2: `ten` is not a value; text needs quotes: \"ten\"");
  write_file(dir / "point.toml", "[optim]\nlr = .001\n");
  expect_user_error(run({"config", "--dump", "point.toml"}, dir.path()),
                    "point.toml:2: `.001` is not a value; write 0.001");
  write_file(dir / "true.toml", "[model]\nbias = True\n");
  expect_user_error(run({"config", "--dump", "true.toml"}, dir.path()),
                    "true.toml:2: `True` is not a value; write true");
  write_file(dir / "path.toml", "[data]\ndir = data/mine\n");
  expect_user_error(run({"config", "--dump", "path.toml"}, dir.path()), "path.toml:2: `data/mine`");
  write_file(dir / "broken.toml", "[data\ndir = \"data\"\n");
  expect_user_error(run({"config", "--dump", "broken.toml"}, dir.path()),
                    "broken.toml:1:", "this is not TOML");
  const auto argument = [&](const char* text) {
    return run({"config", "--dump", "good.toml", text}, dir.path());
  };
  expect_user_error(argument("train.backend=gpu"), "did you mean \"cuda\"?");
  expect_user_error(argument("backend=gpu"),
                    "argument 'backend=gpu': backend needs its section: train.backend");
  expect_user_error(run({"config", "--dump", "good.toml", "--optim.lr"}, dir.path()), "--optim.lr=VALUE");
  expect_user_error(run({"config", "--dump", "goood.toml"}, dir.path()), "goood.toml",
                    "did you mean good.toml?");
  expect_user_error(run({"config", "--dump", "."}, dir.path()), "folder");
}

TEST(ConfigCommand, TheShippedConfigsAreValid) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SHOAL_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    EXPECT_EQ(run({"config", "--dump", entry.path().string()}).code, 0) << entry.path();
  }
  EXPECT_GT(count, 0);
}

}  // namespace
}  // namespace shoal::test
