// Runs that start from weights: the keys that they set, and exact import and export.
#include "config/pretrained.h"

#include "checkpoint/huggingface_support.h"
#include "checkpoint/llmc.h"
#include "checkpoint/nanogpt.h"
#include "data/temp_folder.h"
#include "train/model_io.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Pretrained : public TinyRuns {
 protected:
  // 64 tokens, more than the data have.
  static constexpr WeightsModel kModel{
      .n_layer = 2, .n_head = 4, .n_embd = 24, .n_positions = 12, .vocab_size = 64};

  fs::path weights(const HuggingFaceFolder& raw = HuggingFaceFolder(kModel)) const {
    raw.write(folder_ / "gpt");
    return folder_ / "gpt";
  }
  // A run from the weights that does not change them: its learning rate is zero in float32.
  Config unchanging(const std::string& name, const Settings& settings = {}) const {
    auto config = this->config(name, {"train.steps=1", "optim.lr=1e-60", "lr_schedule.warmup_steps=0"});
    apply_arguments(config, settings);
    config.init.from = "hf:" + (folder_ / "gpt").string();
    Origins origins;
    take_weights_model({WeightsFormat::hugging_face, folder_ / "gpt"}, config, origins);
    return config;
  }
  // The output of `shoal config --dump`.
  Config parsed(const std::string& toml, const Settings& arguments = {}) const {
    return parse_config(fmt::format("data.dir = \"data\"\ntrain.steps = 1\ninit.from = \"hf:{}\"\n{}",
                                    (folder_ / "gpt").string(), toml),
                        "a.toml", arguments);
  }
  std::string refused(const std::string& toml, const Settings& arguments = {}) const {
    return error_of([&] { parsed(toml, arguments); });
  }
  void export_to(const fs::path& out, const std::string& run, const WeightsExport& what) const {
    fs::create_directories(out);
    CheckpointReader checkpoint(this->run(run));
    write_hugging_face(what, checkpoint, out);
  }
};

TEST_F(Pretrained, InAndOutIsByteExactOnAnyRanks) {
  const HuggingFaceFolder raw(kModel);
  weights(raw);
  const std::vector<std::pair<int, Settings>> meshes = {
      {1, {}},
      {2, {"parallel.zero=0"}},
      {2, {"parallel.zero=3"}},
      {3, {"parallel.zero=1"}},
      {3, {"parallel.tensor=3"}},
      {4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=3"}},
      {2, {"parallel.pipeline=2"}},
      {4, {"parallel.pipeline=2", "parallel.tensor=2"}}};
  for (const auto& [ranks, settings] : meshes) {
    const auto name = fmt::format("{}{}", ranks, fmt::join(settings, ""));
    run_trainer(unchanging(name, settings), ranks);
    export_to(folder_ / (name + "-hf"), name, {.model = kModel});
    const SafetensorsFile file(folder_ / (name + "-hf") / "model.safetensors");
    EXPECT_EQ(file.tensors().size(), raw.tensors.size());
    EXPECT_EQ(file.metadata().at("format"), "pt");
    for (const auto& tensor : raw.tensors) {
      const auto& stored = file.at(tensor.name);
      EXPECT_EQ(stored.shape, tensor.shape) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(stored.data, tensor.data)) << tensor.name << ", " << name;
    }
    EXPECT_EQ(read_hugging_face_model(folder_ / (name + "-hf")), kModel);
    EXPECT_NO_THROW(open_hugging_face(folder_ / (name + "-hf")));
  }
}

// 16-bit types are imported exactly, so exporting to the same type gives the same bytes.
TEST_F(Pretrained, HalfTypesInAndOut) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const HuggingFaceFolder raw(kModel, dtype);
    weights(raw);
    const std::string name(name_of(dtype));
    run_trainer(unchanging(name));
    export_to(folder_ / (name + "-hf"), name, {.model = kModel, .dtype = dtype});
    const SafetensorsFile file(folder_ / (name + "-hf") / "model.safetensors");
    for (const auto& tensor : raw.tensors) {
      EXPECT_EQ(file.at(tensor.name).dtype, dtype);
      EXPECT_TRUE(std::ranges::equal(file.at(tensor.name).data, tensor.data)) << tensor.name;
    }
  }
}

TEST_F(Pretrained, ARunWithoutBiasesIsWrittenWithZeros) {
  train("plain", {"model.bias=false", "train.steps=3"});
  const CheckpointReader checkpoint(run("plain"));
  const auto vocabulary = checkpoint.find("transformer.wte.weight")->shape[0];
  export_to(folder_ / "out", "plain",
            {.model = {.n_layer = 2,
                       .n_head = 2,
                       .n_embd = 16,
                       .n_positions = 8,
                       .vocab_size = vocabulary,
                       .bias = false}});
  const SafetensorsFile file(folder_ / "out/model.safetensors");
  const auto& bias = file.at("transformer.h.1.attn.c_attn.bias");
  EXPECT_EQ(bias.shape, (Shape{48}));
  EXPECT_TRUE(std::ranges::all_of(bias.data, [](auto byte) { return byte == std::byte{0}; }));
  EXPECT_NO_THROW(open_hugging_face(folder_ / "out"));
}

TEST_F(Pretrained, TooLargeForFloat16) {
  HuggingFaceFolder raw(kModel);
  const float large = 70'000;
  std::memcpy(raw.at("h.1.mlp.c_fc.weight").data.data(), &large, sizeof large);
  weights(raw);
  const auto opened = open_hugging_face(folder_ / "gpt");
  auto& reader = *opened;
  fs::create_directories(folder_ / "out");
  const auto write = [&](DType dtype) {
    write_hugging_face({.model = kModel, .dtype = dtype}, reader, folder_ / "out");
  };
  EXPECT_THAT(
      error_of([&] { write(DType::f16); }),
      AllOf(HasSubstr("\"transformer.h.1.mlp.c_fc.weight\" holds 70000, which is too large for float16"),
            HasSubstr("float32")));
  EXPECT_NO_THROW(write(DType::bf16));
}

TEST_F(Pretrained, TheFolderDecidesTheModel) {
  weights();
  const auto model = parsed("").model;
  EXPECT_EQ(model.n_layer, 2);
  EXPECT_EQ(model.n_head, 4);
  EXPECT_EQ(model.n_embd, 24);
  EXPECT_EQ(model.block_size, 12);
  EXPECT_EQ(model.vocab_size, 64);
  EXPECT_EQ(model.gelu, Gelu::tanh);
  EXPECT_TRUE(model.bias);
  EXPECT_EQ(model.dropout, 0);

  // Equal values may be given, the context may be shorter, dropout is free.
  const auto given = parsed("model = {n_layer = 2, block_size = 5, dropout = 0.1, vocab_size = 0}").model;
  EXPECT_EQ(given.block_size, 5);
  EXPECT_EQ(given.dropout, 0.1);
  EXPECT_EQ(given.vocab_size, 64);
  EXPECT_EQ(parsed("", {"init.from=resume"}).model.n_embd, 24);  // a run that started from them
}

// llm.c's header and nanoGPT's model_args say as much as config.json.
TEST_F(Pretrained, AFileDecidesTheModel) {
  weights();
  const auto reader = open_hugging_face(folder_ / "gpt");
  write_llmc({.model = kModel}, *reader, folder_ / "gpt.bin");
  auto plain = kModel;
  plain.bias = plain.gelu_tanh = false;
  write_nanogpt({.model = plain}, *reader, folder_ / "gpt.safetensors");
  const auto model_of_start = [&](const std::string& from) {
    return parse_config(fmt::format("data.dir = \"data\"\ntrain.steps = 1\ninit.from = \"{}{}\"\n",
                                    from.substr(0, from.find(':') + 1),
                                    (folder_ / from.substr(from.find(':') + 1)).string()),
                        "a.toml", Settings{})
        .model;
  };
  EXPECT_EQ(to_gpt_config(model_of_start("llmc:gpt.bin")), to_gpt_config(model_of_start("hf:gpt")));
  const auto nanogpt = model_of_start("nanogpt:gpt.safetensors");
  EXPECT_EQ(nanogpt.n_embd, 24);
  EXPECT_EQ(nanogpt.block_size, 12);
  EXPECT_EQ(nanogpt.gelu, Gelu::erf);
  EXPECT_FALSE(nanogpt.bias);
}

TEST(WeightsOfStart, AreNamedByTheirFormat) {
  const auto named = [](const std::string& from) {
    const auto weights = weights_of_start(from);
    return weights ? fmt::format("{} {}", static_cast<int>(weights->format), weights->path.string()) : "none";
  };
  EXPECT_EQ(named("hf:a"), "0 a");
  EXPECT_EQ(named("nanogpt:a/ckpt.pt"), "1 a/ckpt.pt");
  EXPECT_EQ(named("auto:llmc:a.bin"), "2 a.bin");
  EXPECT_EQ(named("scratch"), "none");
  EXPECT_EQ(named("auto"), "none");
  EXPECT_EQ(named("checkpoint:hf:a"), "none");
}

TEST_F(Pretrained, KeysThatDoNotFitTheWeights) {
  weights();
  for (const auto& [key, value, needed] :
       std::vector<std::array<std::string, 3>>{{"n_layer", "3", "2"},
                                               {"n_head", "2", "4"},
                                               {"n_embd", "48", "24"},
                                               {"bias", "false", "true"},
                                               {"vocab_size", "65", "64"},
                                               {"gelu", "\"erf\"", "\"tanh\""}}) {
    const auto toml = fmt::format("model.{} = {}", key, value);
    EXPECT_THAT(refused(toml),
                AllOf(HasSubstr("init.from = \"hf:"),
                      HasSubstr(fmt::format("model.{} = {} (a.toml:4) does not fit the weights", key, value)),
                      HasSubstr(fmt::format("gpt/config.json has {}", needed))));
  }
  EXPECT_THAT(refused("", {"model.block_size=13"}),
              AllOf(HasSubstr("model.block_size = 13 (argument 'model.block_size=13') is more than the 12 "
                              "positions"),
                    HasSubstr("lower it")));
  EXPECT_THAT(refused("model.preset = \"gpt2\""), HasSubstr("model.n_layer = 12 (a.toml:4)"));
  fs::remove_all(folder_ / "gpt");
  EXPECT_THAT(refused(""), AllOf(HasSubstr("there is no folder"), HasSubstr("Hugging Face")));
  EXPECT_THAT(refused("", {"init.from=resume"}), HasSubstr("RUN/config.toml"));
}

// Planning works without the folder; a run needs it.
TEST_F(Pretrained, AConfigThatSaysAllOfTheModelIsReadWithoutTheFolder) {
  const std::string all =
      "model = {n_layer = 2, n_head = 4, n_embd = 24, block_size = 12, vocab_size = 64, bias = true, gelu = "
      "\"tanh\"}";
  EXPECT_EQ(parsed(all).model.n_embd, 24);
  weights();
  const auto config = unchanging("run");
  fs::remove_all(folder_ / "gpt");
  EXPECT_THAT(error_of([&] { run_trainer(config); }), HasSubstr("there is no folder"));
}

// The config in a checkpoint needs the folder no longer, and neither does a run that resumes from it.
TEST_F(Pretrained, ARunGoesOnWithoutTheFolder) {
  weights();
  run_trainer(unchanging("first"));
  fs::remove_all(folder_ / "gpt");
  EXPECT_EQ(config_of(CheckpointReader(run("first"))).model.n_embd, 24);
  const auto config =
      load_config(run("first") / "config.toml", Settings{"init.from=resume", "train.steps=3"});
  EXPECT_EQ(run_trainer(config).step, 3);
}

// A shorter context keeps the first positions, as in nanoGPT.
TEST_F(Pretrained, AShorterContext) {
  const HuggingFaceFolder raw(kModel);
  weights(raw);
  auto config = unchanging("short");
  config.model.block_size = 7;
  run_trainer(config);
  CheckpointReader checkpoint(run("short"));
  std::vector<std::byte> positions(7 * 24 * 4);
  checkpoint.read(whole_slice("transformer.wpe.weight", DType::f32, {7, 24}), positions);
  EXPECT_EQ(std::memcmp(positions.data(), raw.tensors[1].data.data(), positions.size()), 0);
}

TEST_F(Pretrained, AnotherModelOrDamageIsRefusedBeforeAnythingIsAllocated) {
  weights();
  auto config = unchanging("run");
  config.model.n_head = 2;
  EXPECT_THAT(error_of([&] { run_trainer(config, 2); }),
              HasSubstr("model.n_head = 2 does not fit the weights"));
  config = unchanging("run");
  HuggingFaceFolder raw(kModel);
  raw.remove("h.1.ln_2.bias");
  weights(raw);
  EXPECT_THAT(error_of([&] { run_trainer(config, 2); }), HasSubstr("no tensor \"h.1.ln_2.bias\""));
  config.model.vocab_size = 5;
  EXPECT_THAT(error_of([&] { run_trainer(config); }), HasSubstr("the tokenizer of the weights"));
}

}  // namespace
}  // namespace shoal::test
