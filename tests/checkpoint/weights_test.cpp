// Which weights are at a path.
#include "checkpoint/weights.h"

#include "checkpoint/torch_support.h"

namespace shoal::test {
namespace {

TEST(Weights, AreFoundByTheirContents) {
  const ScratchDir dir;
  const auto found = [&](const std::string& name) -> std::optional<WeightsFormat> {
    const auto weights = find_weights(dir / name);
    if (!weights) return std::nullopt;
    EXPECT_EQ(weights->path, dir / name);
    return weights->format;
  };
  fs::create_directories(dir / "gpt");
  EXPECT_EQ(found("gpt"), std::nullopt);
  spill(dir / "gpt/config.json", "{}");
  EXPECT_EQ(found("gpt"), WeightsFormat::hugging_face);
  spill(dir / "a", zip_file({{"x", "y"}}));
  EXPECT_EQ(found("a"), WeightsFormat::nanogpt);
  spill(dir / "b.safetensors", "");
  EXPECT_EQ(found("b.safetensors"), WeightsFormat::nanogpt);
  spill(dir / "c", raw(std::int32_t{20240326}));
  EXPECT_EQ(found("c"), WeightsFormat::llmc);
  spill(dir / "d", "text");
  EXPECT_EQ(found("d"), std::nullopt);
  EXPECT_EQ(found("absent"), std::nullopt);
}

TEST(Weights, NameTheFileThatDescribesThemAndTheirFolder) {
  const Weights folder{WeightsFormat::hugging_face, "models/gpt"},
      file{WeightsFormat::llmc, "models/gpt.bin"};
  EXPECT_EQ(folder.description(), "models/gpt/config.json");
  EXPECT_EQ(folder.folder(), "models/gpt");
  EXPECT_EQ(file.description(), "models/gpt.bin");
  EXPECT_EQ(file.folder(), "models");
}

}  // namespace
}  // namespace shoal::test
