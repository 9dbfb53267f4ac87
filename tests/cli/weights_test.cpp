// Models of nanoGPT and llm.c: exported, trained from, evaluated, sampled, and refused.
#include "cli/tiny_runs.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class WeightsFiles : public TinyRuns {
 protected:
  struct Format {
    std::string prefix, name, file;
    Settings run;  // what the model of the run needs to be one of this program
  };
  static inline const std::vector<Format> kFormats = {
      {"nanogpt:",
       "nanogpt-safetensors",
       "gpt.safetensors",
       {"model.bias=false", "model.gelu=erf", "model.dropout=0"}},
      {"llmc:", "llmc", "gpt.bin", {}}};

  Result export_to(const std::string& out, const std::string& format, const std::string& from = "runs/tiny",
                   const Settings& settings = {}) const {
    return shoal(with({"export", "--checkpoint", from, "--out", out, "--format", format}, settings));
  }
  void export_well(const std::string& out, const std::string& format,
                   const std::string& from = "runs/tiny") const {
    const auto result = export_to(out, format, from);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  // A config without [model]: the weights set it.
  Result tune(const std::string& from, const Settings& settings = {}) const {
    return shoal(with({"train", "tune.toml", "init.from=" + from}, settings));
  }
  void tune_well(const std::string& from, const Settings& settings = {}) const {
    const auto result = tune(from, settings);
    ASSERT_EQ(result.code, 0) << result.err;
  }

  WeightsFiles() {
    write_file(file("tune.toml"), R"(
data.dir = "data"
train = {global_batch = 4, micro_batch = 2, steps = 2, threads = 1}
optim.lr = 1e-3
eval = {interval = 2, batches = 2}
log.tensorboard = false
)");
  }
};

// The learning rate is zero in float32, so training changes no weights.
TEST_F(WeightsFiles, ThereAndBackAgain) {
  for (const auto& format : kFormats) {
    train_well(with({"run.name=" + format.name}, format.run));
    export_well(format.file, format.name, "runs/" + format.name);
    tune_well(format.prefix + format.file, {"run.name=tune-" + format.name, "train.steps=1", "optim.lr=1e-60",
                                            "--ranks", "2", "parallel.tensor=2"});
    export_well("again", format.name, "runs/tune-" + format.name);
    EXPECT_TRUE(read_file(file("again")) == read_file(file(format.file))) << format.name;
    fs::remove(file("again"));

    // Straight from the weights, and by way of another format.
    export_well("again", format.name, format.prefix + format.file);
    EXPECT_TRUE(read_file(file("again")) == read_file(file(format.file))) << format.name;
    fs::remove(file("again"));
    EXPECT_FALSE(fs::exists(file(".again.partial")));
  }
  // A head of its own, which only Hugging Face's format can hold.
  train_well({"run.name=untied", "model.tie_embeddings=false", "train.steps=1"});
  export_well("untied", "hf", "runs/untied");
  tune_well("hf:untied", {"run.name=tune-untied", "train.steps=1", "optim.lr=1e-60"});
  export_well("untied-again", "hf", "runs/tune-untied");
  EXPECT_TRUE(read_file(file("untied-again/model.safetensors")) ==
              read_file(file("untied/model.safetensors")));
  expect_user_error(export_to("untied.bin", "llmc", "runs/untied"), "a head of its own", "--format hf");
  expect_user_error(export_to("untied.safetensors", "nanogpt-safetensors", "runs/untied"),
                    "a head of its own");

  export_well("hf", "hf", "llmc:gpt.bin");
  export_well("again.bin", "llmc", "hf");
  EXPECT_TRUE(read_file(file("again.bin")) == read_file(file("gpt.bin")));
}

TEST_F(WeightsFiles, TheNameOfTheFileIsCheckedFirst) {
  write_file(file("there"), "");
  fs::create_symlink("loop", file("loop"));
  expect_user_error(export_to("", "llmc", "none"), "--out is empty");
  expect_user_error(export_to("new/", "llmc", "none"), "--out new/ is a folder");
  expect_user_error(export_to("there", "llmc", "none"), "--out there exists");
  expect_user_error(export_to("", "hf", "none"), "--out is empty");
  expect_user_error(export_to("loop", "llmc", "none"), "loop: Too many levels of symbolic links");
}

TEST_F(WeightsFiles, HalfOfTheBitsTakeHalfOfTheSpace) {
  train_well({"model.bias=false", "train.steps=1"});
  for (const auto& [format, inner] : {std::pair("hf", "/model.safetensors"), {"nanogpt-safetensors", ""}}) {
    std::map<std::string, double> bytes;
    for (const std::string dtype : {"float32", "float16", "bfloat16"}) {
      const auto out = std::string(format) + "-" + dtype;
      const auto result = export_to(out, format, "runs/tiny", {"--dtype", dtype});
      ASSERT_EQ(result.code, 0) << result.err;
      bytes[dtype] = static_cast<double>(fs::file_size(file(out + inner)));
    }
    EXPECT_NEAR(bytes["float16"] / bytes["float32"], 0.5, 0.05) << format;
    EXPECT_NEAR(bytes["bfloat16"] / bytes["float32"], 0.5, 0.05) << format;
  }
}

TEST_F(WeightsFiles, EvaluateAndResumeLikeAnyOther) {
  train_well();
  const auto figures = [&](const std::string& checkpoint) {
    const auto result = shoal({"eval", "--checkpoint", checkpoint, "data.dir=data", "train.threads=1",
                               "train.global_batch=4", "train.micro_batch=2"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(result.out.find('\n'));
  };
  const auto expected = figures("runs/tiny");
  export_well("gpt.bin", "llmc");
  export_well("gpt.safetensors", "nanogpt-safetensors");
  for (const char* weights : {"llmc:gpt.bin", "gpt.bin", "nanogpt:gpt.safetensors", "gpt.safetensors"})
    EXPECT_EQ(figures(weights), expected) << weights;

  tune_well("llmc:gpt.bin");
  EXPECT_THAT(read_file(file("runs/tune/train.log")), HasSubstr("parameters from the weights in gpt.bin"));
  fs::remove(file("gpt.bin"));
  const auto result = shoal({"train", "runs/tune/config.toml", "init.from=resume", "train.steps=3"});
  EXPECT_EQ(result.code, 0) << result.err;
}

// nanoGPT's vocabulary of characters is found beside the weights.
TEST_F(WeightsFiles, SampleWithTheVocabularyBesideThem) {
  std::string ids;
  for (int i = 0; i < 1000; ++i) ids += {static_cast<char>(i * i % 10), '\0'};
  write_file(file("characters/train.bin"), ids);
  write_file(file("characters/val.bin"), ids);
  const auto meta = SHOAL_SOURCE_DIR "/tests/data/fixtures/nanogpt/meta-2.pkl";
  fs::copy(meta, file("characters/meta.pkl"));
  train_well({"data.dir=characters", "train.steps=1"});
  fs::create_directories(file("out"));
  export_well("out/ckpt.safetensors", "nanogpt-safetensors");
  const Settings sample = {
      "sample", "--checkpoint", "nanogpt:out/ckpt.safetensors", "--prompt", "a", "--max-tokens", "3"};
  expect_user_error_at_the_end(shoal(sample), "has no vocab.json and merges.txt, nor meta.pkl, beside it");
  fs::copy(meta, file("out/meta.pkl"));
  const auto result = shoal(sample);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.front(), 'a');
  EXPECT_THAT(result.err, HasSubstr("from the weights in nanogpt:out/ckpt.safetensors"));
}

// A file of nanoGPT does not say which GELU its model has, and both have been nanoGPT's.
TEST_F(WeightsFiles, TheGeluIsFreeWhereTheFileDoesNotSay) {
  train_well({"model.bias=false"});
  export_well("said.safetensors", "nanogpt-safetensors");
  expect_user_error(tune("nanogpt:said.safetensors", {"model.gelu=erf"}), "model.gelu = \"erf\"",
                    "does not fit");
  auto text = read_file(file("said.safetensors"));
  const auto at = text.find("\"gelu\"");
  ASSERT_NE(at, std::string::npos);
  text[at + 1] = 'G';
  write_file(file("gpt.safetensors"), text);
  const auto gelu = [&](const Settings& settings) {
    const auto result =
        shoal(with({"config", "--dump", "tune.toml", "init.from=nanogpt:gpt.safetensors"}, settings));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(result.out.find("\ngelu = "), 14);
  };
  EXPECT_THAT(gelu({}), HasSubstr("erf"));
  EXPECT_THAT(gelu({"model.gelu=tanh"}), HasSubstr("tanh"));
  tune_well("nanogpt:gpt.safetensors", {"model.gelu=tanh"});
  const auto loss = [&](const std::string& checkpoint, const Settings& settings) {
    const auto result =
        shoal(with({"eval", "--checkpoint", checkpoint, "data.dir=data", "train.threads=1"}, settings));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out.substr(result.out.find("loss"));
  };
  EXPECT_EQ(loss("gpt.safetensors", {"model.gelu=tanh"}), loss("said.safetensors", {}));
  EXPECT_NE(loss("gpt.safetensors", {}), loss("said.safetensors", {}));
}

TEST_F(WeightsFiles, ExportsSayWhatIsLost) {
  train_well({"model.bias=false", "train.steps=1"});
  const auto plain = export_to("a.bin", "llmc");
  EXPECT_THAT(plain.out,
              HasSubstr("the model has no biases, which llm.c always has: they are written as zeros"));
  EXPECT_THAT(plain.out, Not(HasSubstr("GELU")));
  EXPECT_THAT(export_to("a", "hf").out, HasSubstr("no biases, which Hugging Face's GPT-2 always has"));
  EXPECT_THAT(export_to("b.safetensors", "nanogpt-safetensors").out,
              HasSubstr("the model's GELU is the approximation by tanh, nanoGPT's is exact"));
  train_well({"model.gelu=erf", "train.steps=1", "run.name=erf"});
  EXPECT_THAT(export_to("c.bin", "llmc", "runs/erf").out, HasSubstr("the model's GELU is exact, llm.c's is"));
  EXPECT_EQ(export_to("d.safetensors", "nanogpt-safetensors", "runs/erf").out.find("GELU"),
            std::string::npos);
}

TEST_F(WeightsFiles, AreRefused) {
  train_well({"train.steps=1"});
  export_well("gpt.bin", "llmc");
  expect_user_error(export_to("new.bin", "llmc", "runs/tiny", {"--dtype", "float16"}),
                    "--format llmc takes --dtype float32 or bfloat16");
  expect_user_error(export_to("new", "peft", "runs/tiny", {"--dtype", "bfloat16"}),
                    "--format peft takes --dtype float32");
  expect_user_error(export_to("new", "peft", "runs/tiny", {"--adapter", "other"}),
                    "--format peft writes the checkpoint's own adapters", "leave --adapter out");
  expect_user_error(export_to("new", "peft", "runs/tiny", {"--without-adapters"}),
                    "leave --without-adapters out");
  expect_user_error(export_to("gpt.bin", "llmc"), "gpt.bin exists", "--out");
  expect_user_error(tune("llmc:absent.bin"), "init.from = \"llmc:absent.bin\"", "absent.bin");
  expect_user_error(tune("nanogpt:gpt.bin"), "gpt.bin");
  expect_user_error(tune("llmc:data/train.bin"), "data/train.bin", "llm.c's models");
  expect_user_error(tune("llmc:gpt.bin", {"model.n_embd=32"}), "model.n_embd = 32 (argument",
                    "gpt.bin has 16");
  const auto bytes = read_file(file("gpt.bin"));
  write_file(file("gpt.bin"), bytes.substr(0, bytes.size() - 1));
  expect_user_error(tune("llmc:gpt.bin"), "gpt.bin: the header promises", "incomplete or damaged");
  expect_user_error(shoal({"eval", "--checkpoint", "gpt.bin"}), "gpt.bin: the header promises");
  expect_user_error(export_to("hf", "hf", "gpt.bin"), "gpt.bin: the header promises");
  EXPECT_FALSE(fs::exists(file("hf")));
  write_file(file("ckpt.pt"), "PK\x03\x04");
  expect_user_error(tune("nanogpt:ckpt.pt"), "ckpt.pt", "zip archive");
  write_file(file("gpt.bin"), bytes);
  expect_user_error_at_the_end(shoal({"eval", "--checkpoint", "gpt.bin"}), "gpt.bin has weights but no data");
}

}  // namespace
}  // namespace shoal::test
