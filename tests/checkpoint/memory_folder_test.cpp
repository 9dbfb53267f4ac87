// States in the memory of a host. The folder is an ordinary one here, except where the kind of its file
// system matters.
#include "checkpoint/memory_folder.h"

#include <unistd.h>

#include "checkpoint/checkpoint_support.h"
#include "core/host.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

class Memory : public testing::Test {
 protected:
  MemoryFolder folder(const std::string& session = "s1") const {
    return {scratch_.path(), scratch_ / "run", session};
  }
  void save(const MemoryFolder& folder, int slot, int rank, std::int64_t step) const {
    auto record = write_shard_file(folder.begin(slot, rank, 2), std::vector{tensor_.view()}, {},
                                   OutputFile::Existing::overwritten);
    record.info.step = step;
    folder.end(slot, rank, 2, record);
  }
  // "STEP:RANK" of each complete shard.
  static std::vector<std::string> found_in(const MemoryFolder& folder) {
    std::vector<std::string> found;
    for (const auto& shard : folder.shards()) {
      EXPECT_EQ(shard.world, 2);
      verify_shard_file(shard.folder, shard.record);
      found.push_back(fmt::format("{}:{}", shard.record.info.step, shard.rank));
    }
    std::ranges::sort(found);
    return found;
  }
  using Found = std::vector<std::string>;

  ScratchDir scratch_;
  const TestTensor tensor_{"a", DType::f32, {1000}, 1};
};

TEST_F(Memory, HasTheShardsThatWereCompleted) {
  const auto memory = folder();
  EXPECT_EQ(found_in(memory), Found());
  memory.create();
  save(memory, 0, 0, 7);
  save(memory, 0, 1, 7);
  save(memory, 1, 0, 8);
  EXPECT_EQ(found_in(memory), (Found{"7:0", "7:1", "8:0"}));
  EXPECT_EQ(found_in(folder("s2")), Found());
  memory.begin(0, 1, 2);
  EXPECT_EQ(found_in(memory), (Found{"7:0", "8:0"}));
  spill(memory.file(1, 0, 2).parent_path() / "rank-00000-of-00002.json", "{");
  EXPECT_EQ(found_in(memory), Found{"7:0"});
}

// Whichever order the system lists them in.
TEST_F(Memory, OtherFilesAreNoShards) {
  const auto memory = folder();
  memory.create();
  const auto slot = memory.file(0, 0, 2).parent_path();
  for (const auto* name : {"a-before", "z-before"}) spill(slot / name, "");
  save(memory, 0, 0, 7);
  save(memory, 0, 1, 7);
  for (const auto* name : {"a-after", "z-after"}) spill(slot / name, "");
  EXPECT_EQ(found_in(memory), (Found{"7:0", "7:1"}));
}

TEST_F(Memory, ANewSessionRemovesTheFilesOfOthers) {
  folder("s1").create();
  save(folder("s1"), 0, 0, 7);
  const auto elsewhere = folder().path().parent_path() / "another-host/s1";
  fs::create_directories(elsewhere);
  folder("s2").create();
  EXPECT_EQ(found_in(folder("s1")), Found());
  EXPECT_FALSE(fs::exists(folder().path() / "s1"));
  EXPECT_TRUE(fs::exists(elsewhere));
  folder("s2").remove();
  EXPECT_FALSE(fs::exists(folder().path()));
  EXPECT_TRUE(fs::exists(elsewhere));
  fs::remove_all(elsewhere.parent_path());
  folder("s3").create();
  folder("s3").remove();
  EXPECT_TRUE(fs::is_empty(scratch_.path()));
}

TEST_F(Memory, BelongsToOneRun) {
  folder().create();
  save(folder(), 0, 0, 7);
  const MemoryFolder other(scratch_.path(), scratch_ / "other", "s1");
  other.create();
  EXPECT_EQ(found_in(other), Found());
  other.remove();
  EXPECT_EQ(found_in(folder()), Found{"7:0"});
}

TEST_F(Memory, ReservesWhatShardsTake) {
  const auto memory = folder();
  memory.create();
  EXPECT_EQ(memory.bytes(), 0u);
  const auto bytes = shard_bytes(std::vector{tensor_.view()});
  memory.reserve(0, 2, bytes);
  EXPECT_EQ(memory.bytes(), 2 * bytes);
  save(memory, 0, 0, 7);
  EXPECT_EQ(found_in(memory), Found{"7:0"});
  EXPECT_LE(memory.bytes(), 2 * bytes);
  const auto message = user_error([&] { memory.reserve(1, 2, std::uint64_t{1} << 60); });
  EXPECT_THAT(message, HasSubstr("1024.0 PiB"));
  EXPECT_THAT(message, HasSubstr(memory.path().string()));
}

TEST_F(Memory, NobodyElseCanReadIt) {
  folder().create();
  const auto mode = fs::status(folder().path().parent_path()).permissions();
  EXPECT_EQ(mode & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
}

TEST_F(Memory, RefusesAFolderThatIsALink) {
  fs::create_directory(scratch_ / "elsewhere");
  const auto base = folder().path().parent_path();
  fs::create_symlink(scratch_ / "elsewhere", base);
  EXPECT_THAT(user_error([&] { folder().create(); }),
              HasSubstr(base.string() + " is not a folder of this user"));
  EXPECT_EQ(found_in(folder()), Found());
  folder().remove();
  EXPECT_TRUE(fs::exists(scratch_ / "elsewhere"));
}

TEST_F(Memory, RefusesAFolderOfAnotherUser) {
  folder().create();
  save(folder(), 0, 0, 7);
  const auto base = folder().path().parent_path();
  if (::chown(base.c_str(), ::geteuid() + 1, static_cast<gid_t>(-1)) != 0) {
    GTEST_SKIP() << "only root can give a folder to another user";
  }
  EXPECT_THAT(user_error([&] { folder().create(); }), HasSubstr("checkpoint.memory_dir"));
  EXPECT_EQ(found_in(folder()), Found());
  folder().remove();
  EXPECT_TRUE(fs::exists(base));
}

TEST_F(Memory, NamesAFolderThatIsNotThere) {
  const MemoryFolder none(scratch_ / "none", scratch_ / "run", "s1");
  EXPECT_THAT(user_error([&] { none.create(); }), HasSubstr((scratch_ / "none").string()));
}

}  // namespace
}  // namespace shoal::test
