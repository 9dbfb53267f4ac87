// Adapters in peft's files, and weights with adapters added, whole and in the parts that ranks read.
#include "checkpoint/peft.h"

#include <fmt/format.h>

#include <map>

#include "checkpoint/checkpoint_support.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const AdapterModel kAdapterModel{
    .rank = 3, .alpha = 6, .dropout = 0.25, .layers = {"attn.c_attn", "mlp.c_proj"}};
constexpr int kAdapterBlocks = 2, kAdapterWidth = 4;

// [out, in] of a layer
Shape layer_shape(const std::string& layer) {
  return layer == "attn.c_attn" ? Shape{3 * kAdapterWidth, kAdapterWidth}
                                : Shape{kAdapterWidth, 4 * kAdapterWidth};
}

// Tensors of small integers, whose products and sums are exact.
class Integers : public SliceSource {
 public:
  void add(const std::string& name, const Shape& shape) {
    TestTensor tensor(name, DType::f32, shape, 0);
    std::vector<float> values;
    for (std::int64_t i = 0; i < shape.count(); ++i)
      values.push_back(static_cast<float>((i * 7 + static_cast<std::int64_t>(tensors_.size()) * 5) % 11 - 5));
    std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
    tensors_.emplace(name, std::move(tensor));
  }
  void read(const TensorSlice& slice, std::span<std::byte> out) override {
    std::ranges::copy(cut(at(slice.name), slice), out.begin());
  }
  const TestTensor& at(const std::string& name) const { return tensors_.at(name); }
  float value(const std::string& name, std::int64_t i) const {
    float value = 0;
    std::memcpy(&value, &at(name).data[static_cast<std::size_t>(i) * sizeof value], sizeof value);
    return value;
  }
  const std::map<std::string, TestTensor>& all() const { return tensors_; }

 private:
  std::map<std::string, TestTensor> tensors_;
};

std::string layer_name(int block, const std::string& layer) {
  return fmt::format("transformer.h.{}.{}", block, layer);
}

Integers adapters() {
  Integers made;
  for (int block = 0; block < kAdapterBlocks; ++block) {
    for (const auto& layer : kAdapterModel.layers) {
      const auto shape = layer_shape(layer);
      made.add(layer_name(block, layer) + ".lora_A.weight", {kAdapterModel.rank, shape[1]});
      made.add(layer_name(block, layer) + ".lora_B.weight", {shape[0], kAdapterModel.rank});
    }
  }
  return made;
}

// Every kind of part that a rank reads: the whole, rows, columns, and a range of a part's elements.
std::vector<TensorSlice> adapter_parts(const std::string& name, const Shape& shape) {
  std::vector<TensorSlice> parts = {whole_slice(name, DType::f32, shape)};
  for (const int dim : {0, 1}) {
    const auto half = shape[dim] / 2;
    for (const auto begin : {std::int64_t{0}, half})
      parts.push_back(box_slice(name, DType::f32, shape, dim, begin, half));
  }
  auto range = parts.back();
  range.flat_begin = 1;
  range.flat_end -= 2;
  parts.push_back(range);
  return parts;
}

std::vector<std::byte> read_part(SliceSource& source, const TensorSlice& slice) {
  std::vector<std::byte> data(slice.bytes());
  source.read(slice, data);
  return data;
}

class Peft : public ::testing::Test {
 protected:
  Peft() { write_peft(kAdapterModel, kAdapterBlocks, layer_shape, adapters_, scratch_.path()); }
  fs::path config() const { return scratch_ / "adapter_config.json"; }
  // The error of reading a folder whose configuration has `to` in the place of `from`.
  std::string problem(const std::string& from, const std::string& to) {
    const auto text = slurp(config());
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    spill(config(), std::string(text).replace(at, from.size(), to));
    const auto error = user_error([&] { PeftReader reader(scratch_.path()); });
    spill(config(), text);
    return error;
  }

  ScratchDir scratch_;
  Integers adapters_ = adapters();
};

TEST_F(Peft, RoundTripsInEveryPart) {
  PeftReader reader(scratch_.path());
  EXPECT_EQ(reader.model(), kAdapterModel);
  for (const auto& [name, tensor] : adapters_.all()) {
    for (const auto& part : adapter_parts(name, tensor.slice.shape))
      EXPECT_EQ(read_part(reader, part), cut(tensor, part)) << name << " " << to_string(part);
  }
}

TEST_F(Peft, AnotherShapeIsRefused) {
  PeftReader reader(scratch_.path());
  const auto name = layer_name(0, "attn.c_attn") + ".lora_A.weight";
  EXPECT_THAT(user_error([&] {
                read_part(reader, whole_slice(name, DType::f32, {3, 5}));
              }),
              AllOf(HasSubstr(name), HasSubstr("is [3, 4] there, but [3, 5] is needed")));
}

TEST_F(Peft, AnotherNumberOfBlocksIsRefused) {
  const PeftReader reader(scratch_.path());
  reader.require_blocks(kAdapterBlocks);
  for (const int blocks : {kAdapterBlocks - 1, kAdapterBlocks + 1}) {
    EXPECT_THAT(user_error([&] { reader.require_blocks(blocks); }),
                HasSubstr(fmt::format("are of {} blocks, the model has {}", kAdapterBlocks, blocks)));
  }
}

TEST_F(Peft, ARankThatTheMatricesDoNotHaveIsRefused) {
  const auto rank = fmt::format("\"r\": {}", kAdapterModel.rank);
  EXPECT_THAT(problem(rank, "\"r\": 1000000000"), HasSubstr("is not of the rank in adapter_config.json"));
}

TEST_F(Peft, WhatShoalDoesNotDoIsRefused) {
  EXPECT_THAT(problem("\"LORA\"", "\"IA3\""),
              HasSubstr("peft_type = \"IA3\", but Shoal's adapters need \"LORA\""));
  EXPECT_THAT(problem("\"bias\": \"none\"", "\"bias\": \"all\""), HasSubstr("bias = \"all\""));
  for (const std::string key : {"use_dora", "use_rslora", "lora_bias"}) {
    EXPECT_THAT(problem("{", "{\"" + key + "\": true,"),
                HasSubstr(key + " = true, but Shoal's adapters need false"));
    EXPECT_EQ(problem("{", "{\"" + key + "\": false,"), "");
  }
  for (const std::string key : {"rank_pattern", "alpha_pattern", "layers_to_transform"}) {
    EXPECT_THAT(problem("{", "{\"" + key + "\": {\"h.0\": 1},"), HasSubstr(key + " = {\"h.0\":1}"));
    EXPECT_EQ(problem("{", "{\"" + key + "\": {},"), "");
  }
}

TEST_F(Peft, DeepNestingIsRefused) {
  EXPECT_THAT(problem("\"bias\": \"none\"", deep_json("bias")), HasSubstr("nested more than 64 deep"));
}

TEST_F(Peft, NumbersThatMakeNoAdapterAreRefused) {
  EXPECT_THAT(problem("\"r\": 3", "\"r\": 0"), HasSubstr("r = 0 and lora_alpha = 6 are no adapters"));
  EXPECT_THAT(problem("\"lora_alpha\": 6.0", "\"lora_alpha\": 0"),
              HasSubstr("lora_alpha = 0 are no adapters"));
  EXPECT_THAT(problem("\"r\": 3", "\"rank\": 3"), HasSubstr("is damaged, or not of peft's LoRA"));
}

TEST_F(Peft, WeightsWithoutSafetensorsSayWhatToDo) {
  fs::remove(scratch_ / "adapter_model.safetensors");
  EXPECT_THAT(user_error([&] { PeftReader reader(scratch_.path()); }),
              HasSubstr("save the adapters with safetensors"));
}

TEST_F(Peft, OtherTensorsAreRefused) {
  for (const std::string name :
       {"base_model.model.transformer.wte.lora_A.weight", "transformer.h.0.attn.c_attn.lora_A.weight",
        "base_model.model.transformer.h..attn.c_attn.lora_A.weight",
        "base_model.model.transformer.h.0attn.c_attn.lora_A.weight",
        "base_model.model.transformer.h.0.attn.c_attn.lora_C.weight",
        "base_model.model.transformer.h.0.attn.q.lora_A.weight"}) {
    const TensorEntry entry{name, DType::f32, {3, 4}};
    SafetensorsWriter writer(scratch_ / "adapter_model.safetensors", std::vector{entry}, {});
    writer.write(std::vector<std::byte>(48));
    writer.finish();
    EXPECT_THAT(user_error([&] { PeftReader reader(scratch_.path()); }),
                HasSubstr("\"" + name + "\" is no adapter of a linear layer of GPT-2's blocks"));
  }
}

// W + alpha / rank * B A, element by element.
TEST_F(Peft, MergingAddsTheProductToEveryPart) {
  Integers base;
  for (int block = 0; block < kAdapterBlocks; ++block) {
    for (const std::string layer : {"attn.c_attn", "mlp.c_proj"})
      base.add(layer_name(block, layer) + ".weight", layer_shape(layer));
    base.add(layer_name(block, "attn.c_proj") + ".weight",
             {kAdapterWidth, kAdapterWidth});  // which has no adapter
    base.add(layer_name(block, "attn.c_attn") + ".bias", {3 * kAdapterWidth});
  }
  PeftReader reader(scratch_.path());
  for (const double factor : {1.0, -1.0}) {
    MergedSource merged(base, reader, kAdapterModel, factor);
    for (const auto& [name, tensor] : base.all()) {
      const auto layer = name.substr(0, name.rfind('.'));
      const bool adapted = name.ends_with("c_attn.weight") || name.ends_with("mlp.c_proj.weight");
      auto wanted = tensor;
      if (adapted) {
        const auto columns = tensor.slice.shape[1];
        for (std::int64_t i = 0; i < tensor.slice.shape.count(); ++i) {
          auto value = base.value(name, i);
          for (int k = 0; k < kAdapterModel.rank; ++k) {
            value += static_cast<float>(factor) * 2 *
                     adapters_.value(layer + ".lora_B.weight", i / columns * kAdapterModel.rank + k) *
                     adapters_.value(layer + ".lora_A.weight", k * columns + i % columns);
          }
          std::memcpy(&wanted.data[static_cast<std::size_t>(i) * sizeof value], &value, sizeof value);
        }
        for (const auto& part : adapter_parts(name, tensor.slice.shape))
          EXPECT_EQ(read_part(merged, part), cut(wanted, part)) << name << " " << to_string(part);
      } else {
        EXPECT_EQ(read_part(merged, tensor.slice), tensor.data) << name;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::test
