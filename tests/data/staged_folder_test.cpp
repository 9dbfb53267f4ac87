#include "data/staged_folder.h"

#include <gmock/gmock.h>

#include "data/temp_folder.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

class StagedFolderTest : public ::testing::Test {
 protected:
  fs::path out() const { return folder / "out"; }

  TempFolder folder;
};

// NFS keeps the lock of a directory from no other host.
TEST_F(StagedFolderTest, IsLockedByAFileBesideItThatGoesWithIt) {
  const auto lock = folder.write(".out.lock", "");  // left by a killed process
  {
    const StagedFolder staged(out());
    EXPECT_TRUE(fs::is_regular_file(lock));
    EXPECT_THAT(user_error([&] { StagedFolder{out()}; }), HasSubstr("another process is writing"));
    EXPECT_TRUE(fs::is_regular_file(lock));
  }
  EXPECT_FALSE(fs::exists(lock));
  EXPECT_NO_THROW(StagedFolder{out()});
}

TEST_F(StagedFolderTest, RemovesOnlyFilesThatShoalWrites) {
  folder.write("out.partial/train.bin", "of a killed process");
  folder.write("out.partial/.step-00000005.0.partial/shard", "of a killed process");
  StagedFolder staged(out());
  EXPECT_TRUE(fs::exists(folder / "out.partial/train.bin"));  // the input may yet be bad
  staged.begin();
  EXPECT_TRUE(fs::is_empty(staged.path()));
  const auto mine = folder.write("out.partial/sub/mine.txt", "mine");
  EXPECT_THAT(user_error([&] { staged.begin(); }), HasSubstr("out.partial/sub is not a file of Shoal's"));
  EXPECT_TRUE(fs::exists(mine));
}

TEST_F(StagedFolderTest, TakesThePlaceOfNoFilesThatWerePutThereMeanwhile) {
  {
    StagedFolder staged(out());
    staged.begin();
    folder.write("out.partial/train.bin", "new");
    const auto notes = folder.write("out/notes.txt", "mine");
    EXPECT_THAT(user_error([&] { staged.commit(); }),
                AllOf(HasSubstr("files were put there meanwhile"),
                      HasSubstr((folder / "out.partial").string() + " is whole")));
    EXPECT_EQ(read_file(notes), "mine");
  }
  EXPECT_EQ(read_file(folder / "out.partial/train.bin"), "new");
  fs::remove(folder / "out/notes.txt");  // an empty folder is no loss
  StagedFolder again(out());
  again.begin();
  EXPECT_NO_THROW(again.commit());
}

// Nothing can take the place of the volume of a container.
TEST_F(StagedFolderTest, RefusesAMountPoint) {
  const auto error = [](const fs::path& out) { return user_error([&] { StagedFolder{out, true}; }); };
  EXPECT_EQ(error("/proc"), "/proc is a mount point; name a folder in it");
  EXPECT_EQ(error("/proc/../proc/"), "/proc is a mount point; name a folder in it");
}

TEST_F(StagedFolderTest, RefusesALinkToNothing) {
  fs::create_symlink("nowhere", out());
  EXPECT_THAT(user_error([&] { StagedFolder{out()}; }), HasSubstr("a link to a folder that does not exist"));
}

}  // namespace
}  // namespace shoal
