#include "checkpoint/manifest.h"

#include <gmock/gmock.h>

#include "checkpoint/checkpoint_support.h"

namespace shoal::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Names that JSON must escape, or that are not UTF-8; parts of tensors under other names.
Manifest make_manifest() {
  Manifest manifest;
  manifest.info = {.step = 7,
                   .shoal_version = "1.2 \"beta\"",
                   .config = "[run]\nname = \"a\\tb\"\n",
                   .model = {{"layers", 2}, {"bias", false}},
                   .state = {{"loss", 0.1}, {"none", nullptr}}};
  manifest.files = {{"shard-0.safetensors", {9 << 20, {1, 0xfedcba9876543210, 3}}}, {"\xc3\xa4", {0, {}}}};
  const Shape shape{6, 4};
  for (const std::string name : {"h.0.weight", "a \"quoted\" \\ name", "\xc3\xa4\n", "not UTF-8: \xff"}) {
    TensorRecord tensor{name, DType::f32, shape, {{whole_slice(name, DType::f32, shape), 0, name}}};
    auto part = whole_slice(name, DType::f32, shape);
    part.offset = {2, 0};
    part.shape = {3, 4};
    part.flat_begin = 5;
    part.flat_end = 12;
    tensor.slices.push_back({part, 1, name + "@1"});
    manifest.tensors.push_back(tensor);
  }
  manifest.tensors.push_back({"scalar", DType::i32, {}, {}});
  return manifest;
}

Manifest of_step(std::int64_t step) {
  Manifest manifest;
  manifest.info.step = step;
  return manifest;
}

TEST(Manifest, HasTheChecksumOfItsValuesInJsonsOrder) {
  for (const auto& manifest : {make_manifest(), Manifest{}}) {
    auto body = json::parse(to_json_text(manifest));
    const std::string sum = body["checksum"];
    body.erase("checksum");
    EXPECT_EQ(sum, fmt::format("{:016x}", checksum(body.dump())));
  }
}

TEST(Manifest, IsReadAsItWasWritten) {
  auto manifest = make_manifest();
  manifest.files.back().name = "shard-1.safetensors";
  manifest.tensors.erase(manifest.tensors.begin() + 3);  // whose name is another one in UTF-8
  const auto text = to_json_text(manifest);
  const auto read = manifest_from_json_text(text, "here");
  EXPECT_EQ(to_json_text(read), text);
  EXPECT_EQ(read.info.config, manifest.info.config);
  ASSERT_EQ(read.tensors.size(), 4u);
  EXPECT_EQ(read.tensors[1].name, manifest.tensors[1].name);
  EXPECT_EQ(read.tensors[1].slices[1].stored_as, manifest.tensors[1].name + "@1");
  EXPECT_EQ(read.tensors[1].slices[1].slice.flat_end, 12);
}

TEST(Manifest, IsReadHoweverItsFieldsAreLaidOut) {
  const auto body = json::parse(to_json_text(of_step(7)));
  EXPECT_EQ(manifest_from_json_text(body.dump(2), "here").info.step, 7);
}

TEST(Manifest, RefusesAFieldBehindItsChecksum) {
  auto text = to_json_text(of_step(7));
  text.insert(text.rfind('\n', text.size() - 2), ",\n\"step\": 8");
  ASSERT_EQ(json::parse(text)["step"], 8);
  EXPECT_THAT(user_error([&] { manifest_from_json_text(text, "here"); }), HasSubstr("checksum differs"));
}

}  // namespace
}  // namespace shoal::test
