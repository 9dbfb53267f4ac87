// nanoGPT's models: checkpoints as its train.py saves them, and the safetensors file that Shoal writes.
#include "checkpoint/nanogpt.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/torch_support.h"
#include "checkpoint/weights_support.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Items = std::vector<std::pair<std::string, std::string>>;

class NanoGpt : public testing::Test {
 protected:
  // The tensors of a state dict of nanoGPT.
  static std::vector<RawTensor> state_of(const RandomModel& model) {
    std::vector<RawTensor> tensors;
    for (const auto& tensor : model.tensors()) {
      tensors.push_back({tensor.slice.name, DType::f32, tensor.slice.global_shape, tensor.data});
    }
    tensors.push_back(tensors.front());
    tensors.back().name = "lm_head.weight";
    return tensors;
  }
  static Items arguments_of(const WeightsModel& model) {
    return {{"n_layer", pickled(model.n_layer)},
            {"n_head", pickled(model.n_head)},
            {"n_embd", pickled(model.n_embd)},
            {"block_size", pickled(model.n_positions)},
            {"bias", model.bias ? "\x88" : "\x89"},
            {"vocab_size", pickled(model.vocab_size)},
            {"dropout", std::string("G\0\0\0\0\0\0\0\0", 9)}};
  }
  // ckpt.pt, with an optimizer's state and a config that nobody needs here.
  void write(const Items& arguments, const std::vector<RawTensor>& tensors,
             const std::string& prefix = "") const {
    // An argument whose name is a number is ignored.
    const auto model_args = pickled_dictionary(arguments).insert(1, "K\x05K\x06s");
    PickledState state(tensors, prefix);
    state.storages.push_back({"loss", "abcd"});
    const auto loss = PickledTensor{.key = "loss"}.text();
    spill(file_, torch_archive(
                     pickled_dictionary(
                         {{"model", state.text},
                          {"optimizer", pickled_dictionary(
                                            {{"state", "}K\x05" + pickled_dictionary({{"step", loss}}) + "s"},
                                             {"betas",
                                              "G?\xec\xcc\xcc\xcc\xcc\xcc\xcd"
                                              "N\x86"}})},
                          {"model_args", model_args},
                          {"iter_num", pickled(2000)},
                          {"best_val_loss", loss},
                          {"config",
                           pickled_dictionary({{"dataset", pickled("shakespeare")}, {"decay_lr", "\x88"}})}}),
                     state.storages));
  }
  std::string refusal() const {
    return user_error([&] { open_nanogpt(file_); });
  }

  static constexpr WeightsModel kModel{.n_layer = 2,
                                       .n_head = 2,
                                       .n_embd = 6,
                                       .n_positions = 5,
                                       .vocab_size = 11,
                                       .gelu_tanh = false,
                                       .gelu_is_given = false};
  ScratchDir dir_;
  fs::path file_ = dir_ / "ckpt.pt";
};

TEST_F(NanoGpt, ReadsCheckpointsWithAndWithoutBiasesAndCompiled) {
  for (const bool bias : {true, false}) {
    auto model = kModel;
    model.bias = bias;
    const RandomModel random(model);
    for (const char* prefix : {"", "_orig_mod."}) {
      write(arguments_of(model), state_of(random), prefix);
      EXPECT_EQ(read_nanogpt_model(file_), model);
      const auto reader = open_nanogpt(file_);
      EXPECT_EQ(reader->model(), model);
      expect_same_model(*reader, random);
    }
    // Early checkpoints do not say whether there are biases.
    auto arguments = arguments_of(model);
    std::erase_if(arguments, [](const auto& item) { return item.first == "bias"; });
    write(arguments, state_of(random));
    EXPECT_EQ(read_nanogpt_model(file_).bias, bias);
  }
}

TEST_F(NanoGpt, RefusesWhatDoesNotFit) {
  const auto tensors = state_of(RandomModel(kModel));
  const auto with = [&](const std::string& key, const std::string& value) {
    auto arguments = arguments_of(kModel);
    for (auto& item : arguments) {
      if (item.first == key) item.second = value;
    }
    write(arguments, tensors);
    return refusal();
  };
  EXPECT_THAT(with("n_embd", pickled(8)),
              HasSubstr("has the shape [11, 6], but model_args makes it [11, 8]"));
  EXPECT_THAT(with("n_layer", pickled(3)), HasSubstr("ckpt.pt has no tensor \"h.2.ln_1.weight\""));
  EXPECT_THAT(with("n_layer", pickled(1)), HasSubstr("no part of a GPT-2 of 1 layers, as model_args says"));
  EXPECT_THAT(with("bias", "\x89"), HasSubstr("no part of a GPT-2 of 2 layers without biases"));
  EXPECT_THAT(with("n_head", pickled(4)), HasSubstr("n_head = 4 does not divide n_embd = 6"));
  EXPECT_THAT(with("n_head", "N"), HasSubstr("its model_args have no n_head that is a possible size"));
  EXPECT_THAT(with("vocab_size", pickled(-1)), HasSubstr("no vocab_size that is a possible size"));
  auto untied = tensors;
  untied.back().data.back() ^= std::byte{1};
  write(arguments_of(kModel), untied);
  EXPECT_THAT(refusal(),
              HasSubstr("tensor \"lm_head.weight\" is not the same as \"transformer.wte.weight\""));
  const PickledState state(tensors);
  spill(file_, torch_archive(pickled_dictionary({{"model", state.text}}), state.storages));
  EXPECT_THAT(refusal(), HasSubstr("ckpt.pt has no model_args"));
  fs::remove(file_);
  EXPECT_THAT(refusal(), HasSubstr("ckpt.pt"));
}

// The written file has nanoGPT's names, shapes and sizes, and reads back to the same bytes.
TEST_F(NanoGpt, SafetensorsThereAndBackAgain) {
  for (const bool bias : {true, false}) {
    auto model = kModel;
    model.bias = bias;
    model.gelu_tanh = model.gelu_is_given = true;
    RandomModel random(model);
    const WeightsExport what{.model = model, .dropout = 0.25};
    const auto first = dir_ / "a.safetensors", second = dir_ / "b.safetensors";
    write_nanogpt(what, random, first);
    const SafetensorsFile file(first);
    const auto expected = state_of(random);
    ASSERT_EQ(file.tensors().size(), expected.size());
    std::uint64_t bytes = 0;
    for (const auto& tensor : expected) {
      const auto& stored = file.at(tensor.name);
      EXPECT_EQ(stored.shape, tensor.shape) << tensor.name;
      EXPECT_TRUE(std::ranges::equal(stored.data, tensor.data)) << tensor.name;
      bytes += stored.data.size();
    }
    EXPECT_EQ(nanogpt_bytes(what), bytes);
    EXPECT_EQ(file.metadata().at("model_args"),
              fmt::format(
                  "{{\"n_layer\":2,\"n_head\":2,\"n_embd\":6,\"block_size\":5,\"bias\":{},\"vocab_size\":11,"
                  "\"dropout\":0.25}}",
                  bias));
    const auto reader = open_nanogpt(first);
    EXPECT_EQ(reader->model(), model);
    expect_same_model(*reader, random);
    write_nanogpt(what, *reader, second);
    EXPECT_TRUE(slurp(first) == slurp(second));
  }
}

TEST_F(NanoGpt, SafetensorsThatAreNoNanoGpt) {
  SafetensorsWriter(file_, {}, {{"format", "pt"}}).finish();
  EXPECT_THAT(refusal(), HasSubstr("ckpt.pt has no model_args"));
  SafetensorsWriter(file_, {}, {{"model_args", "[1"}}).finish();
  EXPECT_THAT(refusal(), HasSubstr("its metadata's model_args is no JSON object"));
  SafetensorsWriter(file_, {}, {{"model_args", "{}"}}).finish();
  EXPECT_THAT(refusal(), HasSubstr("have no n_layer"));
  spill(file_, "neither");
  EXPECT_THAT(refusal(), HasSubstr("ckpt.pt"));
}

}  // namespace
}  // namespace shoal::test
