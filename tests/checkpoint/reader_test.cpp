#include "checkpoint/reader.h"

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32};

CheckpointInfo info_of(std::int64_t step) {
  return {step, "0.1.0", "[run]\nname = \"a\"\n", {{"n_layer", 2}}, {{"tokens", 1234}, {"best_loss", 1.25}}};
}

// Writes the slices of each rank, and returns the checkpoint's folder.
fs::path write_checkpoint(const fs::path& root, const std::vector<std::vector<SliceView>>& ranks,
                          std::int64_t step = 5) {
  CheckpointWriter writer(root, step);
  const int world = static_cast<int>(ranks.size());
  for (int rank = 0; rank < world; ++rank)
    writer.write_shard(rank, world, ranks[static_cast<std::size_t>(rank)]);
  writer.commit(info_of(step), world);
  return writer.target();
}

// Cuts [0, size) into `parts` pieces at random places; pieces may be empty.
std::vector<std::int64_t> random_cuts(Dice& dice, std::int64_t size, std::int64_t parts) {
  std::vector<std::int64_t> cuts = {0, size};
  for (std::int64_t i = 1; i < parts; ++i) cuts.push_back(dice.between(0, size));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// A tensor distributed by a layout: boxes along one dimension (tensor parallel), each cut into flat ranges
// (ZeRO).
std::vector<TensorSlice> random_sharding(Dice& dice, const TensorSlice& whole) {
  std::vector<TensorSlice> slices;
  const int rank = whole.global_shape.rank();
  const int dim = rank == 0 ? 0 : static_cast<int>(dice.between(0, rank - 1));
  const auto boxes =
      random_cuts(dice, rank == 0 ? 1 : whole.global_shape[dim], rank == 0 ? 1 : dice.between(1, 3));
  for (std::size_t b = 0; b + 1 < boxes.size(); ++b) {
    const auto box =
        box_slice(whole.name, whole.dtype, whole.global_shape, dim, boxes[b], boxes[b + 1] - boxes[b]);
    const auto ranges = random_cuts(dice, box.count(), dice.between(1, 3));
    for (std::size_t r = 0; r + 1 < ranges.size(); ++r) {
      slices.push_back(box);
      slices.back().flat_begin = ranges[r];
      slices.back().flat_end = ranges[r + 1];
    }
  }
  return slices;
}

TEST(Checkpoint, AnyShardingIsReadThroughAnyOther) {
  Dice dice(21);
  for (int round = 0; round < 25; ++round) {
    const ScratchDir scratch;
    std::vector<TestTensor> tensors;
    for (int t = 0; t < 4; ++t) {
      Shape shape;
      for (std::int64_t rank = dice.between(0, 4); rank > 0; --rank) shape.push_back(dice.between(1, 9));
      tensors.emplace_back("layer." + std::to_string(t),
                           kDTypes[static_cast<std::size_t>(dice.between(0, 4))], shape,
                           static_cast<std::uint64_t>(round * 10 + t));
    }
    std::vector<std::vector<std::byte>> storage;
    std::vector<std::vector<SliceView>> ranks(static_cast<std::size_t>(dice.between(1, 4)));
    for (const auto& tensor : tensors) {
      for (const auto& slice : random_sharding(dice, tensor.slice)) {
        storage.push_back(cut(tensor, slice));
        const auto rank =
            static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(ranks.size()) - 1));
        ranks[rank].push_back(
            {slice, storage.back()});  // moving a vector keeps its memory, so spans stay valid
      }
    }
    const auto directory = write_checkpoint(scratch.path(), ranks);
    EXPECT_THAT(verify_checkpoint(directory), IsEmpty());

    CheckpointReader reader(directory);
    for (const auto& tensor : tensors) {
      for (const auto& slice : random_sharding(dice, tensor.slice)) {
        std::vector<std::byte> out(slice.bytes());
        reader.read(slice, out);
        ASSERT_EQ(out, cut(tensor, slice)) << slice.name << ": " << to_string(slice);
      }
    }
  }
}

TEST(Checkpoint, CarriesWhatTheTrainerSays) {
  const ScratchDir scratch;
  const TestTensor a("a", DType::f32, {3, 4}, 1), b("b", DType::bf16, {5}, 2);
  const auto directory = write_checkpoint(scratch.path(), {{a.view(), b.view()}});
  EXPECT_EQ(directory.filename(), "step-00000005");

  const auto contents = inspect_checkpoint(directory);
  EXPECT_EQ(contents.manifest.info.step, 5);
  EXPECT_EQ(contents.manifest.info.config, info_of(5).config);
  EXPECT_EQ(contents.manifest.info.model, info_of(5).model);
  EXPECT_EQ(contents.manifest.info.state, info_of(5).state);
  EXPECT_EQ(contents.elements, 17);
  ASSERT_EQ(contents.manifest.tensors.size(), 2u);
  EXPECT_EQ(contents.manifest.tensors[1].name, "b");
  EXPECT_EQ(contents.manifest.tensors[1].dtype, DType::bf16);
  EXPECT_EQ(contents.manifest.tensors[1].bytes(), 10u);

  // A rank with whole tensors writes them under their own names and shapes, so that other programs can read
  // them.
  const SafetensorsFile file(directory / contents.manifest.files[0].name);
  EXPECT_EQ(file.at("a").shape, (Shape{3, 4}));
  EXPECT_EQ(contents.bytes, file.bytes().size());
  for (const auto& entry : fs::directory_iterator(directory)) {
    EXPECT_THAT(entry.path().filename().string(),
                ::testing::AnyOf("manifest.json", contents.manifest.files[0].name));
  }
}

TEST(Checkpoint, TextThatIsNotUtf8AndNumbersThatAreNotJsonDoNoHarm) {
  const ScratchDir scratch;
  CheckpointWriter writer(scratch.path(), 1);
  writer.write_shard(0, 1, {});
  auto info = info_of(1);
  info.config = "name = \"\xff\"";
  info.state["loss"] = std::numeric_limits<double>::quiet_NaN();
  info.state["third"] = 1.0 / 3;
  writer.commit(info, 1);
  const auto manifest = read_manifest(writer.target());
  EXPECT_TRUE(manifest.info.state["loss"].is_null());
  EXPECT_EQ(manifest.info.state["third"].get<double>(), 1.0 / 3);
}

TEST(Checkpoint, RefusesWhatItDoesNotHold) {
  const ScratchDir scratch;
  const Shape shape{4, 6};
  const TestTensor weight("block.0.weight", DType::f32, shape, 1);
  const auto left = box_slice("block.0.weight", DType::f32, shape, 1, 0, 4);
  const auto data = cut(weight, left);
  const auto directory = write_checkpoint(scratch.path(), {{{left, data}}});

  CheckpointReader reader(directory);
  const auto read = [&](const TensorSlice& slice) {
    std::vector<std::byte> out(slice.bytes());
    return user_error([&] { reader.read(slice, out); });
  };
  EXPECT_EQ(read(left), "");
  EXPECT_THAT(read(weight.slice), AllOf(HasSubstr("\"block.0.weight\" is incomplete"),
                                        HasSubstr("8 of 24 elements"), HasSubstr("[0, 4]")));
  EXPECT_THAT(read(whole_slice("block.0.wieght", DType::f32, shape)),
              HasSubstr("nearest is \"block.0.weight\""));
  EXPECT_THAT(read(whole_slice("block.0.weight", DType::bf16, shape)),
              AllOf(HasSubstr("float32 [4, 6]"), HasSubstr("bfloat16 [4, 6] is needed")));
  EXPECT_THAT(read(whole_slice("block.0.weight", DType::f32, {6, 4})), HasSubstr("[6, 4] is needed"));
  EXPECT_THAT(verify_checkpoint(directory), ElementsAre(HasSubstr("8 of 24 elements")));
}

TEST(Checkpoint, RanksMustAgreeAndDeliver) {
  const ScratchDir scratch;
  const TestTensor a("a", DType::f32, {2}, 1), other("a", DType::f32, {3}, 1);
  CheckpointWriter writer(scratch.path(), 1);
  writer.write_shard(0, 2, std::vector{a.view()});
  EXPECT_THROW(writer.commit(info_of(1), 2, std::chrono::seconds(0)), Error);  // rank 1 never came
  writer.report_failure(1, 2, "the disk of rank 1 is full");
  try {
    writer.commit(info_of(1), 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 could not save its shard: the disk of rank 1 is full"));
  }
  writer.write_shard(1, 2, std::vector{other.view()});
  EXPECT_THROW(writer.commit(info_of(1), 2), Error);
  EXPECT_FALSE(fs::exists(writer.target()));
}

TEST(Checkpoint, TheSameStepAgainReplacesTheOld) {
  const ScratchDir scratch;
  const TestTensor before("a", DType::f32, {2}, 1), after("a", DType::f32, {2}, 2);
  write_checkpoint(scratch.path(), {{before.view()}});
  const auto directory = write_checkpoint(scratch.path(), {{after.view()}});
  std::vector<std::byte> out(8);
  CheckpointReader(directory).read(after.slice, out);
  EXPECT_EQ(out, after.data);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()), 1);
}

class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint()
      : directory_(write_checkpoint(scratch_.path(), {{small_.view()}, {large_.view()}})),
        small_file_(directory_ / "shard-00000-of-00002.safetensors"),
        large_file_(directory_ / "shard-00001-of-00002.safetensors") {}

  std::string read(const TensorSlice& slice, Verify verify = Verify::checksums) {
    std::vector<std::byte> out(slice.bytes());
    return user_error([&] { CheckpointReader(directory_, verify).read(slice, out); });
  }

  ScratchDir scratch_;
  const TestTensor small_{"small", DType::f32, {10}, 1};
  const TestTensor large_{"large", DType::bf16, {3 << 20}, 2};  // 6 MiB: two blocks
  const fs::path directory_, small_file_, large_file_;
};

TEST_F(DamagedCheckpoint, AFlippedBitIsFoundAndNamed) {
  flip_byte(large_file_, (5u << 20) + 12345);
  EXPECT_THAT(read(large_.slice),
              AllOf(HasSubstr(large_file_.string()), HasSubstr("damaged"), HasSubstr("4194304")));
  EXPECT_THAT(verify_checkpoint(directory_), ElementsAre(HasSubstr(large_file_.string())));
  EXPECT_EQ(read(large_.slice, Verify::sizes), "");
  // Other blocks and files can still be read: the reader checks only the blocks that it needs.
  TensorSlice front = large_.slice;
  front.flat_end = 1000;
  EXPECT_EQ(read(front), "");
  EXPECT_EQ(read(small_.slice), "");
}

// The first block has the header and the last one the end of the tensor; the reader always checks both.
TEST_F(DamagedCheckpoint, AFlippedBitIsFoundInEveryBlock) {
  const ScratchDir scratch;
  const TestTensor tensor("a", DType::f32, {(5 << 20) / 2}, 3);  // 10 MiB: three blocks
  const fs::path directory = write_checkpoint(scratch.path(), {{tensor.view()}});
  for (const std::size_t block : {0, 1, 2}) {
    const auto file = directory / "shard-00000-of-00001.safetensors";
    const auto at = block * kChecksumBlock + (1 << 20);
    flip_byte(file, at);
    std::vector<std::byte> out(tensor.slice.bytes());
    EXPECT_THAT(user_error([&] { CheckpointReader(directory).read(tensor.slice, out); }),
                HasSubstr(fmt::format("damaged: bytes {} to", block * kChecksumBlock)));
    flip_byte(file, at);
  }
}

TEST_F(DamagedCheckpoint, ADamagedHeaderIsReportedAsDamage) {
  flip_byte(small_file_, 12);
  EXPECT_THAT(read(small_.slice), AllOf(HasSubstr(small_file_.string()), HasSubstr("differ")));
  EXPECT_THAT(read(small_.slice, Verify::sizes), HasSubstr(small_file_.string()));
}

TEST_F(DamagedCheckpoint, AMissingOrShortFileIsFoundWhenOpened) {
  fs::resize_file(small_file_, 60);
  EXPECT_THAT(read(large_.slice, Verify::sizes),
              AllOf(HasSubstr(small_file_.string()), HasSubstr("60 bytes")));
  fs::remove(small_file_);
  EXPECT_THAT(read(large_.slice), AllOf(HasSubstr(small_file_.string()), HasSubstr("No such file")));
  EXPECT_THAT(verify_checkpoint(directory_), ElementsAre(HasSubstr(small_file_.string())));
}

TEST_F(DamagedCheckpoint, AShardOfAnotherCheckpointIsRefused) {
  fs::copy_file(small_file_, large_file_, fs::copy_options::overwrite_existing);
  EXPECT_THAT(read(large_.slice), HasSubstr(large_file_.string()));
}

TEST_F(DamagedCheckpoint, AMissingManifestIsNamed) {
  fs::remove(directory_ / "manifest.json");
  EXPECT_THAT(read(small_.slice), HasSubstr("manifest.json is missing"));
  EXPECT_THAT(verify_checkpoint(directory_), ElementsAre(HasSubstr("manifest.json is missing")));
}

TEST_F(DamagedCheckpoint, AChangedManifestIsRefused) {
  const fs::path path = directory_ / "manifest.json";
  const std::string good = slurp(path);
  for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2), std::string("[]"),
                                 std::string("{}"), "{" + deep_json("model") + "}"}) {
    spill(path, bad);
    EXPECT_THAT(verify_checkpoint(directory_), ElementsAre(HasSubstr("manifest.json"))) << bad.substr(0, 99);
  }
  std::string other = good;
  other.replace(other.find("1234"), 4, "1235");
  spill(path, other);
  EXPECT_THAT(verify_checkpoint(directory_),
              ElementsAre(AllOf(HasSubstr("manifest.json"), HasSubstr("checksum"))));
  spill(path, good);
  EXPECT_THAT(verify_checkpoint(directory_), IsEmpty());
}

// Reading any manifest with a correct checksum gives a UserError or a valid manifest.
TEST_F(DamagedCheckpoint, ManifestsThatLieAreRefused) {
  const fs::path path = directory_ / "manifest.json";
  const auto good = nlohmann::json::parse(slurp(path));
  const auto with = [&](const std::string& pointer, const nlohmann::json& value) {
    auto bad = good;
    bad.erase("checksum");
    bad[nlohmann::json::json_pointer(pointer)] = value;
    bad["checksum"] = fmt::format("{:016x}", checksum(bad.dump()));
    spill(path, bad.dump());
    return user_error([&] { read_manifest(directory_); });
  };
  EXPECT_EQ(with("/step", 9), "");
  EXPECT_THAT(with("/format", 2), HasSubstr("format is 2"));
  EXPECT_THAT(with("/step", "x"), HasSubstr("whole number"));
  EXPECT_THAT(with("/model", 3), HasSubstr("\"model\" is not a JSON object"));
  EXPECT_THAT(with("/state", nullptr), HasSubstr("\"state\" is not a JSON object"));
  EXPECT_THAT(with("/files/0/name", "../x"), HasSubstr("\"../x\""));
  EXPECT_THAT(with("/files/0/name", "shard-00001-of-00002.safetensors"), HasSubstr("twice"));
  EXPECT_THAT(with("/files/0/bytes", -1), HasSubstr("impossible size"));
  EXPECT_THAT(with("/files/0/bytes", 5 << 20), HasSubstr("1 checksums"));
  EXPECT_THAT(with("/files/0/xxh3/0", "zz"), HasSubstr("\"zz\""));
  EXPECT_THAT(with("/tensors/0/name", "large"), HasSubstr("twice"));
  EXPECT_THAT(with("/tensors/0/dtype", "float7"), HasSubstr("float7"));
  EXPECT_THAT(with("/tensors/0/shape", {-1}), HasSubstr("[-1]"));
  EXPECT_THAT(with("/tensors/0/shape", {1ll << 62}), HasSubstr("impossible"));
  EXPECT_THAT(with("/tensors/0/slices/0/file", 2), HasSubstr("file number 2"));
  EXPECT_THAT(with("/tensors/0/slices/0/file", -1), HasSubstr("file number -1"));
  EXPECT_THAT(with("/tensors/0/slices/0/range", {0, 11}), HasSubstr("outside its box"));
  EXPECT_THAT(with("/tensors/0/slices/0/range", {3}), HasSubstr("manifest.json"));
  EXPECT_THAT(with("/tensors/0/slices/0", {{"file", 0}, {"offset", {8}}, {"shape", {3}}}),
              HasSubstr("outside the tensor"));
  EXPECT_THAT(with("/tensors", 3), HasSubstr("manifest.json"));
}

// A run of elements for each of the tensor's rows would take more memory than there is.
TEST_F(DamagedCheckpoint, ATensorLargerThanItsFileIsRefused) {
  const fs::path path = directory_ / "manifest.json";
  auto bad = nlohmann::json::parse(slurp(path));
  bad.erase("checksum");
  bad["tensors"][0]["shape"] = {1ll << 31, 2};
  bad["tensors"][0]["slices"] = {{{"file", 0}, {"offset", {0, 0}}, {"shape", {1ll << 31, 1}}}};
  bad["checksum"] = fmt::format("{:016x}", checksum(bad.dump()));
  spill(path, bad.dump());
  EXPECT_THAT(verify_checkpoint(directory_), ElementsAre(HasSubstr("does not hold tensor")));
}

TEST(FindCheckpoint, AcceptsARunItsCheckpointsAndOneOfThem) {
  const ScratchDir run;
  const TestTensor a("a", DType::f32, {2}, 1);
  CheckpointStore store(run.path());
  store.save(info_of(7), std::vector{a.view()});
  store.save(info_of(9), std::vector{a.view()}, true);
  store.save(info_of(12), std::vector{a.view()});
  const auto seven = fs::canonical(run / "checkpoints/step-00000007");
  const auto nine = fs::canonical(run / "checkpoints/step-00000009");
  const auto twelve = fs::canonical(run / "checkpoints/step-00000012");
  EXPECT_EQ(find_checkpoint(run.path()), twelve);
  EXPECT_EQ(find_checkpoint(run / "checkpoints"), twelve);
  EXPECT_EQ(find_checkpoint(run / "checkpoints/latest"), twelve);
  EXPECT_EQ(find_checkpoint(run / "checkpoints/best"), nine);
  EXPECT_EQ(find_checkpoint(seven), seven);
  fs::remove(run / "checkpoints/latest");
  EXPECT_EQ(find_checkpoint(run.path()), twelve);
}

TEST(FindCheckpoint, ARunMayBeCalledLikeAStep) {
  const ScratchDir runs;
  const TestTensor a("a", DType::f32, {2}, 1);
  CheckpointStore(runs / "step-law").save(info_of(7), std::vector{a.view()});
  EXPECT_EQ(find_checkpoint(runs / "step-law").filename(), "step-00000007");
}

TEST(FindCheckpoint, SaysWhyAPathCannotBeFollowed) {
  const ScratchDir dir;
  fs::create_symlink("loop", dir / "loop");
  EXPECT_THAT(user_error([&] { find_checkpoint(dir / "loop"); }), HasSubstr("loop: Too many levels"));
  EXPECT_THAT(user_error([&] { find_checkpoint(dir / std::string(300, 'x')); }),
              HasSubstr("x: File name too long"));
}

TEST(FindCheckpoint, SaysWhatItLookedFor) {
  const ScratchDir scratch;
  EXPECT_THAT(user_error([&] { find_checkpoint(scratch.path()); }),
              AllOf(HasSubstr(scratch.path().string()), HasSubstr("manifest.json"), HasSubstr("latest"),
                    HasSubstr("checkpoints/latest")));
  EXPECT_THAT(user_error([&] { find_checkpoint(scratch / "absent"); }), HasSubstr("does not exist"));
  fs::create_symlink("gone", scratch / "link");
  EXPECT_THAT(user_error([&] { find_checkpoint(scratch / "link"); }), HasSubstr("target is gone"));
  spill(scratch / "file", "x");
  EXPECT_THAT(user_error([&] { find_checkpoint(scratch / "file"); }), HasSubstr("no checkpoint"));
}

}  // namespace
}  // namespace shoal::test
