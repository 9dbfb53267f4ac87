// Files of torch.save: the tensors of a state dict, without executing anything, and refusals by name.
#include "checkpoint/torch_file.h"

#include "checkpoint/torch_support.h"

namespace shoal::test {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TorchFiles : public testing::Test {
 protected:
  TorchFile open(const std::string& bytes, std::string_view key = {}) const {
    spill(path_, bytes);
    return TorchFile(path_, key);
  }
  std::string refusal(const std::string& bytes, std::string_view key = {}) const {
    return user_error([&] { open(bytes, key); });
  }
  // The refusal of a state dict with one tensor, "x", of eight floats at the key "0".
  std::string refusal_of(const PickledTensor& tensor) const {
    return refusal(torch_archive(pickled_dictionary({{"x", tensor.text()}}), {{"0", std::string(32, 'x')}}));
  }

  ScratchDir dir_;
  fs::path path_ = dir_ / "model.bin";
};

TEST_F(TorchFiles, ReadsEveryType) {
  std::vector<RawTensor> tensors;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    tensors.push_back(
        {"a." + std::string(name_of(dtype)), dtype, {2, 3}, random_bytes(6 * size_of(dtype), 1)});
  }
  tensors.push_back({"scalar", DType::f32, {}, random_bytes(4, 2)});
  tensors.push_back({"empty", DType::f32, {0, 4}, {}});
  const auto file = open(torch_file(tensors));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& stored = file.tensors()[i];
    EXPECT_EQ(stored.name, tensors[i].name);
    EXPECT_EQ(stored.dtype, tensors[i].dtype);
    EXPECT_EQ(stored.shape, tensors[i].shape);
    EXPECT_TRUE(std::ranges::equal(stored.data, tensors[i].data)) << stored.name;
  }
  const auto masks =
      open(torch_archive(pickled_dictionary({{"mask", PickledTensor{"BoolStorage", "0", 0, {4}, {1}}.text()},
                                             {"old", PickledTensor{"ByteStorage", "0", 0, {4}, {1}}.text()},
                                             {"step", PickledTensor{"LongStorage", "1", 0, {}, {}}.text()}}),
                         {{"0", "\1\0\1\0"s}, {"1", std::string(8, '\0')}}));
  EXPECT_EQ(masks.tensors()[0].type, "BOOL");
  EXPECT_EQ(masks.tensors()[1].type, "U8");
  EXPECT_EQ(masks.tensors()[2].type, "I64");
  EXPECT_EQ(masks.tensors()[2].dtype, std::nullopt);
}

// Tied matrices are views of one storage, and a view may begin anywhere in it.
TEST_F(TorchFiles, ReadsViews) {
  const auto file = open(torch_archive(
      pickled_dictionary({{"all", PickledTensor{.shape = {2, 4}, .strides = {4, 1}}.text()},
                          {"tied", PickledTensor{.shape = {2, 4}, .strides = {4, 1}}.text()},
                          {"end", PickledTensor{.offset = 5, .shape = {1, 3}, .strides = {99, 1}}.text()}}),
      {{"0", std::string(20, 'x') + "abcdefghijkl"}}));
  EXPECT_EQ(file.tensors()[0].data.data(), file.tensors()[1].data.data());
  EXPECT_EQ(file.tensors()[2].data.data(), file.tensors()[0].data.data() + 20);
  EXPECT_EQ(file.tensors()[2].data.size(), 12u);
}

TEST_F(TorchFiles, ReadsAStateDictUnderAKey) {
  const PickledState state({{"x", DType::f32, {2}, random_bytes(8, 1)}});
  const auto bytes =
      torch_archive(pickled_dictionary({{"optimizer", "]"}, {"model", state.text}}), state.storages);
  EXPECT_EQ(open(bytes, "model").tensors().at(0).name, "x");
  EXPECT_THAT(refusal(bytes, "net"), HasSubstr("model.bin holds no state dict under the key \"net\""));
  EXPECT_THAT(refusal(bytes, "optimizer"), HasSubstr("no state dict under the key"));
  EXPECT_THAT(refusal(bytes), HasSubstr("tensor \"optimizer\": it is no tensor"));
  EXPECT_THAT(refusal(torch_archive("]", {})), HasSubstr("model.bin holds no state dict"));
}

TEST_F(TorchFiles, RefusesCodeByItsName) {
  EXPECT_THAT(refusal(torch_archive("cos\nsystem\n(" + pickled("echo owned") + "tR", {})),
              AllOf(HasSubstr("model.bin: data.pkl: byte 13: the pickle asks for Python's os.system"),
                    HasSubstr("no code is executed"), HasSubstr("torch.save(model.state_dict(), FILE)")));
  EXPECT_THAT(refusal(torch_archive("cmodel\nGPT\n)\x81}b", {})), HasSubstr("model.GPT"));
  EXPECT_THAT(refusal(torch_archive("ctorch._utils\n_rebuild_parameter\n)R", {})),
              HasSubstr("torch._utils._rebuild_parameter"));
}

TEST_F(TorchFiles, RefusesOtherFormats) {
  EXPECT_THAT(refusal("\x80\x02\x8a\nl\xfc\x9c"
                      "F\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."),
              AllOf(HasSubstr("before PyTorch 1.6"), HasSubstr("torch.save(torch.load(")));
  EXPECT_THAT(refusal("{}"), HasSubstr("is no file of torch.save"));
  EXPECT_THAT(refusal(zip_file({{"word/document.xml", "<a/>"}})), HasSubstr("has no entry data.pkl"));
  EXPECT_THAT(refusal(torch_archive("}", {}, "big")), HasSubstr("big-endian"));
}

TEST_F(TorchFiles, RefusesTensorsThatAreNot) {
  const PickledTensor good{.shape = {2, 4}, .strides = {4, 1}};
  EXPECT_EQ(refusal_of(good), "");
  auto bad = good;
  bad.strides = {1, 2};
  EXPECT_THAT(refusal_of(bad),
              AllOf(HasSubstr("tensor \"x\": its shape [2, 4] is stored with the strides [1, 2]"),
                    HasSubstr("save x.contiguous()")));
  bad = good;
  bad.offset = 1;
  EXPECT_THAT(refusal_of(bad),
              HasSubstr("tensor \"x\": its 8 elements from element 1 on do not lie in data/0"));
  bad.offset = -1;
  EXPECT_THAT(refusal_of(bad), HasSubstr("from element -1 on"));
  bad = good;
  bad.storage = "DoubleStorage";
  EXPECT_THAT(refusal_of(bad), HasSubstr("which has 4: the file is damaged"));
  bad.storage = "ComplexFloatStorage";
  EXPECT_THAT(refusal_of(bad), HasSubstr("torch.ComplexFloatStorage"));
  bad = good;
  bad.key = "1";
  EXPECT_THAT(refusal_of(bad), HasSubstr("no entry data/1"));
  bad = good;
  bad.shape = {-2, 4};
  EXPECT_THAT(refusal_of(bad), HasSubstr("its sizes are not"));
  bad = good;
  bad.shape = {4};
  EXPECT_THAT(refusal_of(bad), HasSubstr("its sizes are not"));
  bad.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_THAT(refusal_of(bad), HasSubstr("overflows"));
  EXPECT_THAT(refusal(torch_archive("}(K\x01Nu", {})), HasSubstr("a name in the state dict is no text"));
  EXPECT_THAT(refusal(torch_archive(pickled_dictionary({{"x", "N"}}), {})),
              HasSubstr("\"x\": it is no tensor"));
  for (const char* arguments : {")", "NNNN\x86", "(((tQK\0)NtR"}) {
    EXPECT_NE(refusal(torch_archive(
                  pickled_dictionary({{"x", "ctorch._utils\n_rebuild_tensor_v2\n"s + arguments + "R"}}), {})),
              "");
  }
}

// Every prefix is refused, and every change of one byte is read or refused: nothing else happens.
TEST_F(TorchFiles, SurviveEveryMutation) {
  const auto good = torch_file(
      {{"x", DType::f32, {2, 2}, random_bytes(16, 1)}, {"y", DType::f16, {3}, random_bytes(6, 2)}});
  const auto check = [&](const std::string& bytes) {
    try {
      std::size_t total = 0;
      const auto file = open(bytes);
      for (const auto& tensor : file.tensors()) {
        for (const auto byte : tensor.data) total += static_cast<std::size_t>(byte);
      }
      EXPECT_LT(total, 255u * good.size());
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("model.bin"));
    }
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    EXPECT_NE(refusal(good.substr(0, i)), "") << i;
    for (const int change : {1, 0x42, 0x80}) {
      auto bad = good;
      bad[i] = static_cast<char>(bad[i] ^ change);
      check(bad);
    }
  }
}

}  // namespace
}  // namespace shoal::test
