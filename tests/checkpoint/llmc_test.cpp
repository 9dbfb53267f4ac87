// llm.c's models: the header, the order of tensors, and refusals.
#include "checkpoint/llmc.h"

#include "checkpoint/torch_support.h"
#include "checkpoint/weights_support.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr WeightsModel kModel{.n_layer = 3, .n_head = 2, .n_embd = 6, .n_positions = 5, .vocab_size = 11};

// The file as llm.c's train_gpt2.py writes it: tensors of one kind stand together.
std::string llmc_file(const RandomModel& model, std::int32_t version) {
  std::string file;
  for (const std::int32_t number : {20240326, version, 5, 11, 3, 2, 6, 128}) file += raw(number);
  file.resize(1024);
  const auto add = [&](const std::string& name) {
    const auto& data = model.at("transformer." + name).data;
    for (std::size_t i = 0; i < data.size(); i += 4) {
      const std::size_t dropped = version == 5 ? 2 : 0;
      file.append(reinterpret_cast<const char*>(&data[i + dropped]), 4 - dropped);
    }
  };
  add("wte.weight");
  file.append((128 - 11) * 6 * (version == 5 ? 2 : 4), '\0');
  add("wpe.weight");
  for (const char* kind : {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
                           "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                           "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"}) {
    for (int layer = 0; layer < 3; ++layer) add(fmt::format("h.{}.{}", layer, kind));
  }
  add("ln_f.weight");
  add("ln_f.bias");
  return file;
}

class Llmc : public testing::Test {
 protected:
  std::string refusal(const std::string& bytes) const {
    spill(file_, bytes);
    return user_error([&] { open_llmc(file_); });
  }
  // The whole file with another number in its header.
  std::string refusal_of(std::size_t place, std::int32_t number) const {
    auto bytes = llmc_file(RandomModel(kModel), 3);
    bytes.replace(place * 4, 4, raw(number));
    return refusal(bytes);
  }

  ScratchDir dir_;
  fs::path file_ = dir_ / "model.bin";
};

TEST_F(Llmc, ReadsAndWritesBothVersionsByteForByte) {
  for (const auto& [version, dtype] : {std::pair(3, DType::f32), std::pair(5, DType::bf16)}) {
    const RandomModel random(kModel, dtype);
    const auto bytes = llmc_file(random, version);
    spill(file_, bytes);
    EXPECT_EQ(read_llmc_model(file_), kModel);
    const auto reader = open_llmc(file_);
    EXPECT_EQ(reader->model(), kModel);
    expect_same_model(*reader, random);

    const WeightsExport what{.model = kModel, .dtype = dtype};
    std::uint64_t done = 0;
    write_llmc(what, *reader, dir_ / "again.bin", [&](std::uint64_t written) { done = written; });
    EXPECT_TRUE(slurp(dir_ / "again.bin") == bytes) << "version " << version;
    EXPECT_EQ(llmc_bytes(what), bytes.size() - 1024);
    EXPECT_EQ(done, bytes.size() - 1024);
  }
}

TEST_F(Llmc, BiasesOfAModelWithoutAreZeros) {
  auto plain = kModel;
  plain.bias = false;
  RandomModel random(plain);
  write_llmc({.model = plain}, random, file_);
  const auto reader = open_llmc(file_);
  EXPECT_TRUE(reader->model().bias);
  expect_same_model(*reader, random);
  std::vector<float> bias(18, 1);
  reader->read(whole_slice("transformer.h.1.attn.c_attn.bias", DType::f32, {18}),
               std::as_writable_bytes(std::span(bias)));
  EXPECT_EQ(bias, std::vector<float>(18, 0));
  EXPECT_THROW(write_llmc({.model = plain, .dtype = DType::f16}, random, file_), Error);
}

TEST_F(Llmc, RefusesOtherFilesAndDamage) {
  EXPECT_THAT(refusal(""), HasSubstr("model.bin: 0 bytes are less than the header"));
  EXPECT_THAT(refusal_of(0, 20240520), HasSubstr("begins with 20240520, not with 20240326"));
  EXPECT_THAT(refusal_of(1, 2), AllOf(HasSubstr("version 2"), HasSubstr("3 (float32) and 5 (bfloat16)")));
  for (const std::size_t place : {2, 3, 4, 5, 6}) {
    for (const std::int32_t number : {0, -1})
      EXPECT_THAT(refusal_of(place, number), HasSubstr("describes no model")) << place;
  }
  EXPECT_THAT(refusal_of(5, 4), HasSubstr("describes no model"));   // heads that do not divide the width
  EXPECT_THAT(refusal_of(7, 10), HasSubstr("describes no model"));  // fewer rows than the vocabulary
  for (const std::size_t place : {2, 4, 6, 7}) {
    EXPECT_THAT(refusal_of(place, 0x7ffffffe),
                AllOf(HasSubstr("the header promises"), HasSubstr("incomplete or damaged")))
        << place;
  }
  const auto bytes = llmc_file(RandomModel(kModel), 3);
  EXPECT_EQ(refusal(bytes), "");
  EXPECT_THAT(refusal(bytes.substr(0, bytes.size() - 1)), HasSubstr("incomplete or damaged"));
  EXPECT_THAT(refusal(bytes + "x"), HasSubstr("incomplete or damaged"));
  fs::remove(file_);
  EXPECT_THAT(user_error([&] { read_llmc_model(file_); }), HasSubstr("model.bin"));
}

}  // namespace
}  // namespace shoal::test
