// GPT-2 in Hugging Face's format: the reader gives the file's values under Shoal's names and in its layout,
// and refuses inconsistent files.
#include "checkpoint/huggingface.h"

#include "checkpoint/huggingface_support.h"
#include "checkpoint/torch_support.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The reference: element (row, column) of Shoal's tensor, from the file's bytes.
float element(const RawTensor& raw, bool transposed, std::int64_t row, std::int64_t column) {
  const std::int64_t columns = raw.shape[-1];
  const auto at = static_cast<std::size_t>(transposed ? column * columns + row : row * columns + column);
  const auto get = [&](auto number) {
    std::memcpy(&number, &raw.data[at * sizeof number], sizeof number);
    return to_float(number);
  };
  if (raw.dtype == DType::f16) return get(float16{});
  return raw.dtype == DType::bf16 ? get(bfloat16{}) : get(float{});
}

std::vector<float> expected(const RawTensor& raw, bool transposed, const TensorSlice& slice) {
  std::vector<float> values;
  const std::int64_t width = slice.shape[-1];
  for (auto i = slice.flat_begin; i < slice.flat_end; ++i) {
    const std::int64_t row = slice.shape.rank() == 2 ? slice.offset[0] + i / width : 0;
    values.push_back(element(raw, transposed, row, slice.offset[-1] + i % width));
  }
  return values;
}

std::vector<float> values_of(SliceSource& source, const TensorSlice& slice) {
  std::vector<float> values(static_cast<std::size_t>(slice.count()), -77);
  source.read(slice, std::as_writable_bytes(std::span(values)));
  return values;
}

class HuggingFace : public testing::Test {
 protected:
  std::string refusal() {
    raw_.write(folder_);
    return user_error([&] { open_hugging_face(folder_); });
  }
  std::string config_refusal(const std::string& key, const std::string& value) {
    HuggingFaceFolder raw;
    raw.config[key] = value;
    raw.write(folder_);
    return user_error([&] { read_hugging_face_model(folder_); });
  }

  ScratchDir dir_;
  fs::path folder_ = dir_ / "gpt";
  HuggingFaceFolder raw_;
};

TEST_F(HuggingFace, ReadsEveryTensorOfEveryTypeWithAndWithoutPrefix) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const char* prefix : {"transformer.", ""}) {
      HuggingFaceFolder raw(kTinyModel, dtype, prefix);
      raw.write(folder_);
      const auto opened = open_hugging_face(folder_);
      auto& reader = *opened;
      EXPECT_EQ(reader.model(), kTinyModel);
      for (const auto& tensor : hugging_face_tensors(kTinyModel)) {
        const auto slice = whole_slice("transformer." + tensor.name, DType::f32, tensor.shape);
        EXPECT_EQ(values_of(reader, slice), expected(raw.at(tensor.name), tensor.transposed, slice))
            << tensor.name << " of " << name_of(dtype);
      }
    }
  }
}

// A matrix larger than the block of rows that is transposed at a time.
TEST_F(HuggingFace, ReadsAnySlice) {
  const WeightsModel model{.n_layer = 1, .n_head = 1, .n_embd = 35, .n_positions = 7, .vocab_size = 41};
  HuggingFaceFolder raw(model);
  raw.write(folder_);
  const auto opened = open_hugging_face(folder_);
  auto& reader = *opened;
  Dice dice(1);
  for (int i = 0; i < 500; ++i) {
    for (const char* name : {"wte.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_proj.weight", "ln_f.bias"}) {
      const auto tensors = hugging_face_tensors(model);
      const auto& tensor =
          *std::find_if(tensors.begin(), tensors.end(), [&](auto& t) { return t.name == name; });
      auto slice = whole_slice(std::string("transformer.") + name, DType::f32, tensor.shape);
      for (int dim = 0; dim < slice.shape.rank(); ++dim) {
        slice.offset[dim] = dice.between(0, tensor.shape[dim] - 1);
        slice.shape[dim] = dice.between(0, tensor.shape[dim] - slice.offset[dim]);
      }
      slice.flat_begin = dice.between(0, slice.shape.count());
      slice.flat_end = dice.between(slice.flat_begin, slice.shape.count());
      ASSERT_EQ(values_of(reader, slice), expected(raw.at(name), tensor.transposed, slice))
          << to_string(slice);
    }
  }
}

TEST_F(HuggingFace, FewerPositionsAreTheFirst) {
  raw_.write(folder_);
  const auto opened = open_hugging_face(folder_);
  auto& reader = *opened;
  const auto slice = whole_slice("transformer.wpe.weight", DType::f32, {3, 6});
  EXPECT_EQ(values_of(reader, slice), expected(raw_.at("wpe.weight"), false, slice));
  const auto refused = [&](const char* name, const Shape& shape) {
    return user_error([&] { values_of(reader, whole_slice(name, DType::f32, shape)); });
  };
  EXPECT_THAT(refused("transformer.wpe.weight", {6, 6}), HasSubstr("is [5, 6] there, but [6, 6] is needed"));
  EXPECT_THAT(refused("transformer.wte.weight", {3, 6}), HasSubstr("is [11, 6] there, but [3, 6] is needed"));
  EXPECT_THAT(refused("transformer.ln_f.weight", {3, 2}), HasSubstr("is [6] there, but [3, 2] is needed"));
  EXPECT_THAT(refused("transformer.h.2.ln_1.weight", {6}),
              HasSubstr("no tensor \"transformer.h.2.ln_1.weight\""));
  EXPECT_THAT(refused("optimizer.m.transformer.wte.weight", {11, 6}), HasSubstr("no tensor \"optimizer.m."));
}

TEST_F(HuggingFace, ReadsShards) {
  raw_.write(folder_);
  fs::rename(folder_ / "model.safetensors", dir_ / "whole.safetensors");
  const std::size_t half = raw_.tensors.size() / 2;
  const auto place = [&](std::size_t i) { return i < half ? "a.safetensors" : "b.safetensors"; };
  raw_.write_tensors(folder_ / "a.safetensors", 0, half);
  raw_.write_tensors(folder_ / "b.safetensors", half, raw_.tensors.size());
  std::string map;
  for (std::size_t i = 0; i < raw_.tensors.size(); ++i)
    map += fmt::format("{}\"{}\": \"{}\"", i ? "," : "", raw_.tensors[i].name, place(i));
  const auto index = folder_ / "model.safetensors.index.json";
  const auto write_index = [&](const std::string& entries) {
    spill(index, "{\"metadata\": {}, \"weight_map\": {" + entries + "}}");
  };
  write_index(map);
  const auto opened = open_hugging_face(folder_);
  auto& reader = *opened;
  for (const auto& tensor : hugging_face_tensors(kTinyModel)) {
    const auto slice = whole_slice("transformer." + tensor.name, DType::f32, tensor.shape);
    EXPECT_EQ(values_of(reader, slice), expected(raw_.at(tensor.name), tensor.transposed, slice));
  }

  const auto refused = [&] { return user_error([&] { open_hugging_face(folder_); }); };
  write_index(map + ", \"x\": \"../a.safetensors\"");
  EXPECT_THAT(refused(), HasSubstr("names \"../a.safetensors\", which is no file beside it"));
  write_index(map + ", \"x\": \"b.safetensors\"");
  EXPECT_THAT(refused(), HasSubstr("says that tensor \"x\" is in b.safetensors, but it is not"));
  write_index(map + ", \"x\": \"c.safetensors\"");
  EXPECT_THAT(refused(), HasSubstr("c.safetensors"));
  write_index("\"transformer.wte.weight\": \"a.safetensors\"");
  EXPECT_THAT(refused(), HasSubstr("has no tensor"));
  spill(index, "{}");
  EXPECT_THAT(refused(), HasSubstr("model.safetensors.index.json is damaged"));
  write_index(map);
  raw_.write_tensors(folder_ / "b.safetensors", half - 1, raw_.tensors.size());
  EXPECT_THAT(refused(), AllOf(HasSubstr("is there twice"), HasSubstr("a.safetensors")));
}

// A file of torch.save instead of safetensors, alone and in shards.
TEST_F(HuggingFace, ReadsPickledTensors) {
  raw_.write(folder_);
  const auto expect_all = [&] {
    const auto reader = open_hugging_face(folder_);
    for (const auto& tensor : hugging_face_tensors(kTinyModel)) {
      const auto slice = whole_slice("transformer." + tensor.name, DType::f32, tensor.shape);
      EXPECT_EQ(values_of(*reader, slice), expected(raw_.at(tensor.name), tensor.transposed, slice))
          << tensor.name;
    }
  };
  spill(folder_ / "pytorch_model.bin", "not looked at");
  expect_all();
  fs::remove(folder_ / "model.safetensors");
  spill(folder_ / "pytorch_model.bin", torch_file(raw_.tensors));
  expect_all();

  fs::remove(folder_ / "pytorch_model.bin");
  const auto half = raw_.tensors.begin() + static_cast<std::ptrdiff_t>(raw_.tensors.size() / 2);
  spill(folder_ / "one.bin", torch_file({raw_.tensors.begin(), half}));
  spill(folder_ / "two.bin", torch_file({half, raw_.tensors.end()}));
  std::string map;
  for (auto at = raw_.tensors.begin(); at != raw_.tensors.end(); ++at) {
    map +=
        fmt::format("{}\"{}\": \"{}\"", map.empty() ? "" : ",", at->name, at < half ? "one.bin" : "two.bin");
  }
  spill(folder_ / "pytorch_model.bin.index.json", "{\"weight_map\": {" + map + "}}");
  expect_all();
}

TEST_F(HuggingFace, MasksAndATiedHeadAreNoParameters) {
  for (const char* layer : {"0", "1"}) {
    raw_.add(fmt::format("transformer.h.{}.attn.bias", layer), {1, 1, 5, 5});
    raw_.add(fmt::format("transformer.h.{}.attn.masked_bias", layer), {});
  }
  auto head = raw_.at("wte.weight");
  head.name = "lm_head.weight";
  raw_.tensors.push_back(head);
  EXPECT_EQ(refusal(), "");
  raw_.at("lm_head.weight").data.back() ^= std::byte{1};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.safetensors: tensor \"lm_head.weight\" is not the same as "
                                         "\"transformer.wte.weight\""),
                               HasSubstr("one matrix")));
  raw_.at("lm_head.weight") = {"lm_head.weight", DType::bf16, {11, 6}, random_bytes(132, 1)};
  EXPECT_THAT(refusal(), HasSubstr("is not the same"));
}

TEST_F(HuggingFace, AHeadOfItsOwnIsAParameter) {
  raw_.config["tie_word_embeddings"] = "false";
  EXPECT_THAT(refusal(), HasSubstr("no tensor \"lm_head.weight\""));
  raw_.add("lm_head.weight", {11, 6});
  raw_.write(folder_);
  const auto reader = open_hugging_face(folder_);
  EXPECT_FALSE(reader->model().tied);
  const auto slice = whole_slice("lm_head.weight", DType::f32, {11, 6});
  EXPECT_EQ(values_of(*reader, slice), expected(raw_.at("lm_head.weight"), false, slice));
}

TEST_F(HuggingFace, MissingTensorsAndLayers) {
  raw_.remove("h.1.mlp.c_fc.bias");
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors has no tensor \"h.1.mlp.c_fc.bias\""));
  raw_ = HuggingFaceFolder();
  raw_.config["n_layer"] = "3";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("no tensor \"h.2.ln_1.weight\""), HasSubstr("n_layer = 3")));
  raw_.config["n_layer"] = "2147483647";
  EXPECT_THAT(refusal(), HasSubstr("no tensor \"h.2.ln_1.weight\""));
  raw_.tensors.clear();
  EXPECT_THAT(refusal(), HasSubstr("no tensor \"wte.weight\""));
}

TEST_F(HuggingFace, TensorsTooMany) {
  raw_.config["n_layer"] = "1";
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("tensor \"transformer.h.1."), HasSubstr("no part of a GPT-2 of 1 layers")));
  raw_ = HuggingFaceFolder();
  raw_.add("score.weight", {2, 6});
  EXPECT_THAT(refusal(), HasSubstr("tensor \"score.weight\" is no part of a GPT-2"));
  raw_ = HuggingFaceFolder();
  raw_.add("wpe.weight", {5, 6});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("is there twice"), HasSubstr("wpe.weight")));
}

TEST_F(HuggingFace, ShapesAndTypes) {
  raw_.config["n_embd"] = "8";
  EXPECT_THAT(refusal(), HasSubstr("tensor \"transformer.wte.weight\" has the shape [11, 6], but config.json "
                                   "makes it [11, 8]"));
  raw_.config["n_embd"] = "6";
  raw_.config["vocab_size"] = "12";
  EXPECT_THAT(refusal(), HasSubstr("makes it [12, 6]"));
  raw_ = HuggingFaceFolder();
  raw_.at("h.0.attn.c_attn.weight").shape = {18, 6};  // as Shoal has it
  EXPECT_THAT(refusal(), HasSubstr("has the shape [18, 6], but config.json makes it [6, 18]"));
  raw_ = HuggingFaceFolder();
  raw_.at("ln_f.bias") = {"transformer.ln_f.bias", DType::f64, {6}, random_bytes(48, 1)};
  EXPECT_THAT(refusal(), HasSubstr("tensor \"transformer.ln_f.bias\" is of type F64"));
}

TEST_F(HuggingFace, DamagedFiles) {
  raw_.write(folder_);
  const auto weights = folder_ / "model.safetensors";
  const auto bytes = slurp(weights);
  const auto refused = [&] { return user_error([&] { open_hugging_face(folder_); }); };
  spill(weights, bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(refused(), HasSubstr("model.safetensors"));
  spill(weights, "");
  EXPECT_THAT(refused(), HasSubstr("model.safetensors"));
  fs::remove(weights);
  EXPECT_THAT(refused(),
              HasSubstr("has no model.safetensors; put it, or pytorch_model.bin, beside config.json"));
  spill(folder_ / "pytorch_model.bin", "");
  EXPECT_THAT(refused(), HasSubstr("pytorch_model.bin is no file of torch.save"));
  fs::remove(folder_ / "config.json");
  EXPECT_THAT(refused(), HasSubstr("has no config.json"));
  fs::remove_all(folder_);
  EXPECT_THAT(refused(), AllOf(HasSubstr("there is no folder"),
                               HasSubstr("config.json, model.safetensors, vocab.json and merges.txt"),
                               HasSubstr("huggingface.co/openai-community/gpt2")));
}

TEST_F(HuggingFace, ConfigsThatAreNotAGpt2OfShoals) {
  for (const auto& [key, value, why] : std::vector<std::array<std::string, 3>>{
           {"model_type", "\"llama\"", "model_type is \"llama\", but only gpt2"},
           {"model_type", "null", "model_type is not given"},
           {"n_layer", "0", "n_layer = 0 is no possible size"},
           {"n_layer", "-1", "no possible size"},
           {"n_layer", "2.5", "no possible size"},
           {"n_layer", "\"2\"", "no possible size"},
           {"n_layer", "null", "has no n_layer"},
           {"n_embd", "99999999999999999999", "no possible size"},
           {"vocab_size", "18446744073709551615", "no possible size"},
           {"n_head", "4", "n_head = 4 does not divide n_embd = 6"},
           {"n_inner", "12", "n_inner = 12, but Shoal's GPT-2 needs 24"},
           {"activation_function", "\"relu\"", "activation_function = \"relu\""},
           {"activation_function", "1", "activation_function = 1"},
           {"layer_norm_epsilon", "1e-6", "layer_norm_epsilon = 1e-06, but Shoal's GPT-2 needs 1e-05"},
           {"layer_norm_epsilon", "\"small\"", "layer_norm_epsilon"},
           {"scale_attn_weights", "false", "scale_attn_weights = false"},
           {"tie_word_embeddings", "1", "tie_word_embeddings = 1"},
           {"scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx = true"},
           {"reorder_and_upcast_attn", "true", "reorder_and_upcast_attn = true"},
           {"add_cross_attention", "true", "add_cross_attention = true"},
           {"pruned_heads", "{\"1\": [0]}", "pruned_heads"},
           {"quantization_config", "{\"bits\": 4}", "quantization_config"}}) {
    EXPECT_THAT(config_refusal(key, value), AllOf(HasSubstr("config.json"), HasSubstr(why))) << key << value;
  }
  spill(folder_ / "config.json", "{\"n_layer\": ");
  EXPECT_THAT(user_error([&] { read_hugging_face_model(folder_); }), HasSubstr("config.json is damaged"));
  spill(folder_ / "config.json", "{" + deep_json("vocab_size") + "}");
  EXPECT_THAT(user_error([&] { read_hugging_face_model(folder_); }), HasSubstr("nested more than 64 deep"));
  spill(folder_ / "config.json", "[]");
  EXPECT_THAT(user_error([&] { read_hugging_face_model(folder_); }), HasSubstr("not a JSON object"));
}

TEST_F(HuggingFace, ConfigsThatAre) {
  for (const auto& [key, value] :
       std::vector<std::array<std::string, 2>>{{"n_inner", "24"},
                                               {"n_inner", "null"},
                                               {"activation_function", "\"gelu_pytorch_tanh\""},
                                               {"activation_function", "null"},
                                               {"layer_norm_epsilon", "9.999999747378752e-06"},
                                               {"tie_word_embeddings", "true"},
                                               {"add_cross_attention", "false"},
                                               {"pruned_heads", "{}"},
                                               {"resid_pdrop", "0.1"}}) {
    EXPECT_EQ(config_refusal(key, value), "") << key << value;
  }
  raw_.config["activation_function"] = "\"gelu\"";
  raw_.config.extract("n_positions").key() = "n_ctx";
  raw_.config["n_ctx"] = "5";
  raw_.write(folder_);
  const auto model = read_hugging_face_model(folder_);
  EXPECT_FALSE(model.gelu_tanh);
  EXPECT_EQ(model.n_positions, 5);
}

}  // namespace
}  // namespace shoal::test
