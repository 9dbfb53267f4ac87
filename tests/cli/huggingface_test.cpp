// Import and export of weights in Hugging Face's format.
#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A config without [model]: the weights set it.
constexpr const char* kTuneConfig = R"(
data.dir = "data"
init.from = "hf:gpt"
train = {global_batch = 4, micro_batch = 2, steps = 4, threads = 1}
optim.lr = 1e-3
eval = {interval = 2, batches = 2}
checkpoint = {interval = 2, keep = 100}
log.tensorboard = false
)";

class HuggingFaceFolders : public TinyRuns {
 protected:
  static constexpr const char* kWeights = "gpt/model.safetensors";

  HuggingFaceFolders() {
    write_file(file("tune.toml"), kTuneConfig);
    train_well();
    const auto result = export_to("gpt");
    EXPECT_EQ(result.code, 0) << result.err;
  }
  Result export_to(const std::string& out, const Settings& settings = {},
                   const char* run = "runs/tiny") const {
    Settings arguments = {"export", "--checkpoint", run, "--out", out};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return shoal(arguments);
  }
  Result tune(const Settings& settings = {}) const {
    Settings arguments = {"train", "tune.toml"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    return shoal(arguments);
  }
  void tune_well(const Settings& settings = {}) const {
    const auto result = tune(settings);
    ASSERT_EQ(result.code, 0) << result.err;
  }
};

// The learning rate is zero in float32, so training changes no weights.
TEST_F(HuggingFaceFolders, ThereAndBackAgain) {
  tune_well({"train.steps=1", "optim.lr=1e-60"});
  const auto result = export_to("again", {}, "runs/tune");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("again: 2 layers, 2 heads, width 16, 16 positions"));
  EXPECT_THAT(result.out, HasSubstr("no tokenizer is written: the model's is \"char\""));
  EXPECT_EQ(read_file(file("again/model.safetensors")), read_file(file(kWeights)));
  EXPECT_THAT(read_file(file("again/config.json")), HasSubstr("\"model_type\": \"gpt2\""));
  EXPECT_FALSE(fs::exists(file("again.partial")));
}

TEST_F(HuggingFaceFolders, ARunFromThemGoesOnLikeAnyOther) {
  tune_well();
  EXPECT_THAT(read_file(file("runs/tune/train.log")), HasSubstr("parameters from the weights in gpt"));
  const auto end = final_state("tune");
  tune_well({"run.name=parts", "train.steps=2", "lr_schedule.decay_steps=4"});
  tune_well({"run.name=parts", "lr_schedule.decay_steps=4", "init.from=resume"});
  EXPECT_EQ(final_state("parts"), end);
  // A run on several ranks starts from the same weights: the first measured loss is theirs.
  tune_well({"run.name=ranks", "--ranks", "2", "parallel.zero=3"});
  const auto first_line = [&](const char* run) {
    const auto text = reproducible_metrics(run);
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(first_line("ranks"), first_line("tune"));
}

TEST_F(HuggingFaceFolders, EvaluationAndSamples) {
  const Settings small = {"train.threads=1", "train.global_batch=4", "train.micro_batch=2"};
  const auto eval = [&](Settings arguments) {
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), small.begin(), small.end());
    return shoal(arguments);
  };
  const auto weights = eval({"--checkpoint", "gpt", "data.dir=data"});
  const auto run = eval({"--checkpoint", "runs/tiny"});
  EXPECT_EQ(weights.code, 0) << weights.err;
  const auto figures = [](const Result& result) { return result.out.substr(result.out.find('\n')); };
  EXPECT_EQ(figures(weights), figures(run));
  expect_user_error_at_the_end(eval({"--checkpoint", "gpt"}), "gpt has weights but no data", "data.dir=");
  expect_user_error(eval({"--checkpoint", "gpt", "data.dir=data", "model.n_embd=32"}), "is fixed by");
  expect_user_error_at_the_end(shoal({"sample", "--checkpoint", "gpt", "--max-tokens", "1"}),
                               "gpt has no vocab.json and merges.txt");
}

TEST_F(HuggingFaceFolders, OtherCommandsKnowTheModel) {
  const auto dump = shoal({"config", "--dump", "tune.toml"});
  EXPECT_EQ(dump.code, 0) << dump.err;
  EXPECT_THAT(dump.out, HasSubstr("n_embd = 16\nblock_size = 16\n"));
  const auto size = shoal({"size", "tune.toml"});
  EXPECT_EQ(size.code, 0) << size.err;
  EXPECT_THAT(size.out, HasSubstr("2 layers, 2 heads, width 16, block 16"));
  expect_user_error(shoal({"size", "tune.toml", "model.n_layer=3"}), "model.n_layer = 3", "does not fit");
}

// Tiny models saved by transformers, and their losses computed by it in float64. torch_parity_test.cpp
// derives a relative error of 1e-5 for a float32 model, so a loss of 3.5 may be off by 3.5e-5.
TEST(TransformersFiles, HaveTheLossThatTransformersFinds) {
  const TempDir folder;
  for (const char* name : {"gelu_new", "gelu_half"}) {
    const auto fixture = fs::path(SHOAL_SOURCE_DIR "/tests/parity/fixtures/transformers") / name;
    const auto data = folder / (std::string(name) + "-data");
    write_file(data / "train.bin", read_file(fixture / "val.bin"));
    write_file(data / "val.bin", read_file(fixture / "val.bin"));
    const auto result =
        run({"eval", "--checkpoint", fixture.string(), "data.dir=" + data.string(), "train.threads=1"});
    ASSERT_EQ(result.code, 0) << result.err;
    const auto at = result.out.find("loss ");
    ASSERT_NE(at, std::string::npos) << result.out;
    EXPECT_NEAR(std::stod(result.out.substr(at + 5)), std::stod(read_file(fixture / "loss.txt")), 3.5e-5)
        << name;
  }
}

TEST_F(HuggingFaceFolders, ExportsThatAreRefused) {
  expect_user_error(export_to("gpt"), "gpt is not empty", "--out");
  write_file(file("occupied"), "");
  expect_user_error(export_to("occupied"), "occupied is not a folder");
  expect_user_error(export_to("out", {}, "runs/absent"), "no checkpoint at runs/absent");
  EXPECT_EQ(export_to("out", {"--dtype", "int8"}).code, 2);
  EXPECT_EQ(export_to("out", {"--format", "gguf"}).code, 2);
  const fs::path shard = file("runs/tiny/checkpoints/step-00000020/shard-00000-of-00001.safetensors");
  auto bytes = read_file(shard);
  bytes[bytes.size() / 4] ^= 1;
  write_file(shard, bytes);
  expect_user_error(export_to("out"), "shard-00000-of-00001.safetensors is damaged");
  EXPECT_FALSE(fs::exists(file("out")));
  EXPECT_FALSE(fs::exists(file("out.partial")));
}

TEST_F(HuggingFaceFolders, TrainingThatIsRefused) {
  const auto weights = read_file(file(kWeights));
  const auto config = read_file(file("gpt/config.json"));
  const auto with_config = [&](const std::string& from, const std::string& to) {
    auto text = config;
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    write_file(file("gpt/config.json"), text.replace(at, from.size(), to));
    const auto result = tune();
    write_file(file("gpt/config.json"), config);
    return result;
  };
  setenv("HF_HUB_OFFLINE", "1", 1);
  setenv("HF_HOME", file("hub").c_str(), 1);
  setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
  expect_user_error(tune({"init.from=hf:gpt2"}), "init.from = \"hf:gpt2\" (argument 'init.from=hf:gpt2')",
                    "there is no folder gpt2, and", "HF_HUB_OFFLINE forbids a download",
                    "config.json, model.safetensors, vocab.json and merges.txt of http://127.0.0.1:1/gpt2");
  expect_user_error(tune({"init.from=hf:"}), "init.from=hf:", "hf:DIR");
  expect_user_error(tune({"model.n_embd=32"}), "model.n_embd = 32 (argument", "gpt/config.json has 16");
  expect_user_error(tune({"model.block_size=17"}), "more than the 16 positions");
  expect_user_error(with_config("\"gelu_new\"", "\"relu\""),
                    "gpt/config.json: activation_function = \"relu\"");
  expect_user_error(with_config("\"n_layer\"", "\"n_layers\""), "gpt/config.json has no n_layer");
  expect_user_error(with_config("{", "{{"), "gpt/config.json is damaged");
  expect_user_error_at_the_end(with_config("\"n_layer\": 2", "\"n_layer\": 1000"),
                               "no tensor \"h.2.ln_1.weight\"", "n_layer = 1000");
  EXPECT_FALSE(fs::exists(file("runs/tune/checkpoints/latest")));

  write_file(file(kWeights), weights.substr(0, weights.size() / 2));
  expect_user_error_at_the_end(tune(), "gpt/model.safetensors");
  expect_user_error_at_the_end(tune({"--ranks", "2"}), "gpt/model.safetensors");
  fs::remove(file(kWeights));
  expect_user_error_at_the_end(tune(), "gpt has no model.safetensors");
  write_file(file(kWeights), weights);
  tune_well();  // succeeds after all these errors
}

}  // namespace
}  // namespace shoal::test
