#include "checkpoint/safetensors.h"

#include "checkpoint/checkpoint_support.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A file with any header: its length, the text, `data_bytes` of zeros.
fs::path file_with_header(const ScratchDir& scratch, const std::string& header, std::size_t data_bytes) {
  const fs::path path = scratch / "file.safetensors";
  const std::uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  spill(path, text + header + std::string(data_bytes, '\0'));
  return path;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, RoundTripsEveryType) {
  const ScratchDir scratch;
  const std::vector<TestTensor> tensors = {
      {"weight", DType::f32, {3, 5}, 1},
      {"half", DType::f16, {7}, 2},
      {"brain", DType::bf16, {1, 2, 3}, 3},
      {"double", DType::f64, {2}, 4},
      {"ids", DType::i32, {4, 1}, 5},
      {"scalar", DType::f32, Shape{}, 6},
      {"none", DType::f32, {0, 3}, 7},
      {"Grüße \"x\"\\", DType::f32, {2}, 8},
      {"long", DType::bf16, {3, 1 << 20, 1}, 9},  // several checksum blocks
  };
  std::vector<TensorEntry> entries;
  for (const auto& tensor : tensors) {
    entries.push_back({tensor.slice.name, tensor.slice.dtype, tensor.slice.shape});
  }
  const fs::path path = scratch / "all.safetensors";
  SafetensorsWriter writer(path, entries, {{"format", "pt"}, {"step", "7"}});
  for (const auto& tensor : tensors) writer.write(tensor.data);
  const FileSummary summary = writer.finish();

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("step"), "7");
  EXPECT_EQ(file.header().size() % 8, 0u);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& tensor : tensors) {
    const auto& stored = file.at(tensor.slice.name);
    EXPECT_EQ(stored.dtype, tensor.slice.dtype);
    EXPECT_EQ(stored.shape, tensor.slice.shape);
    EXPECT_TRUE(std::ranges::equal(stored.data, tensor.data)) << tensor.slice.name;
  }
  // Data are in the given order; an empty tensor may be before or after its neighbour.
  EXPECT_EQ(file.tensors().front().name, "weight");
  EXPECT_EQ(file.tensors().back().name, "long");

  const std::string raw = slurp(path);
  EXPECT_EQ(summary.bytes, raw.size());
  ASSERT_EQ(summary.checksums.size(), 2u);
  EXPECT_EQ(summary.checksums[0], checksum(std::string_view(raw).substr(0, kChecksumBlock)));
  EXPECT_EQ(summary.checksums[1], checksum(std::string_view(raw).substr(kChecksumBlock)));
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  const ScratchDir scratch;
  SafetensorsWriter(scratch / "none", {}).finish();
  EXPECT_TRUE(SafetensorsFile(scratch / "none").tensors().empty());
}

TEST(Safetensors, ReadsTypesThatShoalDoesNotComputeWith) {
  const ScratchDir scratch;
  const auto path = file_with_header(
      scratch,
      R"({"a":)" + entry("I64", "[2]", "[0,16]") + R"(,"b":)" + entry("BOOL", "[3]", "[16,19]") + "}", 19);
  const SafetensorsFile file(path);
  EXPECT_EQ(file.at("a").type, "I64");
  EXPECT_FALSE(file.at("a").dtype.has_value());
  EXPECT_EQ(file.at("b").data.size(), 3u);
}

TEST(Safetensors, TheWriterRefusesWhatDoesNotFitItsHeader) {
  const ScratchDir scratch;
  SafetensorsWriter writer(scratch / "x", {{"a", DType::f32, {2}}});
  EXPECT_THROW(writer.write(random_bytes(4, 1)), Error);
  EXPECT_THROW(SafetensorsWriter(scratch / "y", {{"a", DType::f32, {2}}, {"a", DType::f32, {2}}}), Error);
  SafetensorsWriter unfinished(scratch / "z", {{"a", DType::f32, {2}}});
  EXPECT_THROW(unfinished.finish(), Error);
}

TEST(Safetensors, AMissingTensorIsNamedWithTheNearest) {
  const ScratchDir scratch;
  const auto path = file_with_header(scratch, R"({"weight":)" + entry("F32", "[1]", "[0,4]") + "}", 4);
  const SafetensorsFile file(path);
  EXPECT_THAT(user_error([&] { file.at("weigth"); }),
              AllOf(HasSubstr("file.safetensors"), HasSubstr("\"weigth\""), HasSubstr("\"weight\"")));
}

struct BadHeader {
  std::string fault, header;
  std::size_t data_bytes;
  std::string message;
  bool in_tensor = false;
};

TEST(Safetensors, HeadersThatLieAreRefusedByFileTensorAndFault) {
  const std::string good = entry("F32", "[2]", "[0,8]");
  const std::vector<BadHeader> cases = {
      {"not JSON", "{\"a\":", 0, "JSON"},
      {"not an object", "[1,2,3]", 0, "not a JSON object"},
      {"not UTF-8", "{\"\xff\":1}", 0, "JSON"},
      {"fields missing", R"({"a":{"dtype":"F32"}})", 0, "needs dtype, shape and data_offsets", true},
      {"an entry that is a number", R"({"a":3})", 0, "needs dtype", true},
      {"unknown type", R"({"a":)" + entry("F31", "[2]", "[0,8]") + "}", 8, "\"F31\" is unknown", true},
      {"type of another kind", R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})", 8, "unknown"},
      {"negative size", R"({"a":)" + entry("F32", "[-2]", "[0,8]") + "}", 8, "shape [-2]", true},
      {"fractional size", R"({"a":)" + entry("F32", "[2.5]", "[0,8]") + "}", 8, "shape [2.5]"},
      {"too many dimensions", R"({"a":)" + entry("F32", "[1,1,1,1,1,2]", "[0,8]") + "}", 8, "at most 5"},
      {"a size past 63 bits", R"({"a":)" + entry("F32", "[18446744073709551615]", "[0,8]") + "}", 8, "shape"},
      {"a product that overflows", R"({"a":)" + entry("F32", "[4294967296,4294967296]", "[0,8]") + "}", 8,
       "overflows", true},
      {"a product that overflows to 8 bytes",
       R"({"a":)" + entry("F32", "[4611686018427387906]", "[0,8]") + "}", 8, "overflows"},
      {"an overflow beside a zero", R"({"a":)" + entry("F32", "[0,4294967296,4294967296]", "[0,0]") + "}", 0,
       "overflows"},
      {"offsets that are no pair", R"({"a":)" + entry("F32", "[2]", "[0]") + "}", 8, "not two positions"},
      {"negative offsets", R"({"a":)" + entry("F32", "[2]", "[-8,0]") + "}", 8, "not two positions"},
      {"reversed offsets", R"({"a":)" + entry("F32", "[2]", "[8,0]") + "}", 8, "outside", true},
      {"offsets past the end", R"({"a":)" + entry("F32", "[2]", "[0,8]") + "}", 7, "outside the 7 bytes"},
      {"offsets of another size", R"({"a":)" + entry("F32", "[3]", "[0,8]") + "}", 8, "takes 12", true},
      {"overlap", R"({"a":)" + good + R"(,"b":)" + entry("F32", "[2]", "[4,12]") + "}", 12, "overlap"},
      {"a hole", R"({"b":)" + good + R"(,"a":)" + entry("F32", "[2]", "[12,20]") + "}", 20,
       "belong to no tensor"},
      {"data that nobody owns", R"({"a":)" + good + "}", 9, "end after 8 of 9"},
      {"a name twice", R"({"a":)" + good + R"(,"a":)" + good + "}", 8, "\"a\" appears twice"},
      {"a field twice", R"({"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8,
       "\"dtype\" appears twice"},
      {"too deep", R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8, "too deeply"},
      {"metadata that is no text", R"({"__metadata__":{"x":1}})", 0, "__metadata__ \"x\""},
  };
  const ScratchDir scratch;
  for (const auto& bad : cases) {
    const auto path = file_with_header(scratch, bad.header, bad.data_bytes);
    const auto message = user_error([&] { SafetensorsFile file(path); });
    EXPECT_THAT(message, AllOf(HasSubstr("file.safetensors"), HasSubstr(bad.message))) << bad.fault;
    if (bad.in_tensor) {
      EXPECT_THAT(message, HasSubstr("tensor \"a\"")) << bad.fault;
    }
  }
}

TEST(Safetensors, LengthsThatLieAreRefused) {
  const ScratchDir scratch;
  const fs::path path = scratch / "file";
  const auto with_length = [&](std::uint64_t length, std::size_t rest) {
    std::string text(reinterpret_cast<const char*>(&length), sizeof length);
    spill(path, text + std::string(rest, ' '));
    return user_error([&] { SafetensorsFile file(path); });
  };
  EXPECT_THAT(with_length(100, 50), HasSubstr("claims 100 bytes"));
  EXPECT_THAT(with_length(~0ull, 50), HasSubstr("claims"));
  EXPECT_THAT(with_length(~0ull - 7, 50), HasSubstr("claims"));
  spill(path, "");
  EXPECT_THAT(user_error([&] { SafetensorsFile file(path); }), HasSubstr("0 bytes"));
  EXPECT_THAT(user_error([&] { SafetensorsFile file(scratch.path()); }), HasSubstr("not a regular file"));
  EXPECT_THAT(user_error([&] { SafetensorsFile file(scratch / "absent"); }), HasSubstr("No such file"));
}

// Reading a damaged file gives a UserError, or a file whose tensors lie inside it.
TEST(Safetensors, DamagedHeadersNeverCrash) {
  const ScratchDir scratch;
  const fs::path path = scratch / "file";
  SafetensorsWriter writer(path, {{"a", DType::f32, {2, 3}}, {"b", DType::bf16, {5}}}, {{"k", "v"}});
  writer.write(random_bytes(24, 1));
  writer.write(random_bytes(10, 2));
  writer.finish();
  const std::string good = slurp(path);
  const std::size_t header = SafetensorsFile(path).header().size();

  Dice dice(3);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bad = good;
    for (std::int64_t flips = dice.between(1, 3); flips > 0; --flips) {
      bad[static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(header) - 1))] =
          static_cast<char>(dice.between(0, 255));
    }
    if (dice.between(0, 3) == 0)
      bad.resize(static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(bad.size()))));
    spill(path, bad);
    try {
      const SafetensorsFile file(path);
      for (const auto& tensor : file.tensors()) {
        ASSERT_GE(tensor.data.data(), file.bytes().data());
        ASSERT_LE(tensor.data.data() + tensor.data.size(), file.bytes().data() + file.bytes().size());
      }
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace shoal::test
