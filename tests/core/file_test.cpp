#include "core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class Files : public testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / fmt::format("shoal-files-{}", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(Files, AreReadAsTheyWereWritten) {
  const auto path = folder_ / "text";
  for (const std::string text : {"some text that is longer than the next", "less", ""}) {
    write_text(path, text);
    EXPECT_EQ(read_text(path, 100), text);
    EXPECT_EQ(MappedFile(path).bytes().size(), text.size());
  }
}

TEST_F(Files, AreReplacedInOneStep) {
  const auto path = folder_ / "page";
  replace_text(path, "old");
  const auto reader = open_file(path, O_RDONLY, "read");  // has begun to read when the file is replaced
  replace_text(path, "newer");
  EXPECT_EQ(read_text(path, 100), "newer");
  char byte = 0;
  ASSERT_EQ(::read(reader.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'o');
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);  // nothing is left beside it
  EXPECT_THROW(replace_text(folder_ / "no/where", "text"), UserError);
}

TEST_F(Files, AreStagedUnderNamesOfTheirOwn) {
  const auto path = folder_ / "model";
  write_text(folder_ / "model.partial", "a user's");
  write_text(folder_ / ".model.partial", "what a killed process has left");
  {
    StagedFile one(path), other(path);
    EXPECT_NE(one.path(), other.path());
    write_text(one.path(), "one");
    other.write("other");
    one.commit();
    EXPECT_EQ(read_text(path, 100), "one");
    other.commit();
    EXPECT_EQ(read_text(path, 100), "other");
    StagedFile unfinished(path);
    unfinished.write("half");
  }
  EXPECT_EQ(read_text(path, 100), "other");
  EXPECT_EQ(read_text(folder_ / "model.partial", 100), "a user's");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

TEST_F(Files, AreStagedWithTheModeOfAnyNewFile) {
  const auto mask = ::umask(0027);
  replace_text(folder_ / "text", "");
  ::umask(mask);
  EXPECT_EQ(fs::status(folder_ / "text").permissions(), fs::perms{0640});
}

TEST_F(Files, AreReplacedBehindALink) {
  fs::create_directories(folder_ / "pictures");
  fs::create_symlink("pictures/one", folder_ / "link");
  write_text(folder_ / "pictures/one", "old");
  replace_text(folder_ / "link", "new");
  EXPECT_EQ(fs::read_symlink(folder_ / "link"), "pictures/one");
  EXPECT_EQ(read_text(folder_ / "pictures/one", 100), "new");
}

TEST_F(Files, ThatCannotGetTheirNameLeaveNothing) {
  fs::create_directories(folder_ / "page");
  EXPECT_THAT([&] { replace_text(folder_ / "page", "text"); },
              ThrowsMessage<UserError>(HasSubstr("page: Is a directory")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

// The blocks that a file has are there on a full disk, too.
TEST_F(Files, AreWrittenOverWhereTheirBlocksHaveRoom) {
  const auto path = folder_ / "config";
  write_text(path, std::string(100, 'x'));
  EXPECT_TRUE(overwrite_text(path, std::string(200, 'y')));
  EXPECT_EQ(read_text(path, 1000), std::string(200, 'y'));
  EXPECT_TRUE(overwrite_text(path, "z"));
  EXPECT_EQ(read_text(path, 1000), "z");
  EXPECT_FALSE(overwrite_text(path, std::string(1 << 20, 'y')));
  EXPECT_EQ(read_text(path, 1000), "z");
  EXPECT_FALSE(overwrite_text(folder_ / "none", "z"));
}

TEST_F(Files, ThatCannotBeReadOrWrittenThrowWithTheirNamesAndTheReason) {
  write_text(folder_ / "text", "12345");
  EXPECT_THAT([&] { read_text(folder_ / "text", 4); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("text is too large"), HasSubstr("at most 4"))));
  EXPECT_THAT([&] { MappedFile(folder_ / "none"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("none: No such file"))));
  EXPECT_THAT([&] { MappedFile{folder_}; }, ThrowsMessage<UserError>(HasSubstr("not a regular file")));
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);  // that nobody writes to
  EXPECT_THAT([&] { MappedFile(folder_ / "pipe"); },
              ThrowsMessage<UserError>(HasSubstr("not a regular file")));
  EXPECT_THAT([&] { write_text(folder_ / "none" / "text", ""); },
              ThrowsMessage<UserError>(HasSubstr("cannot create")));
  const auto full = open_file("/dev/full", O_WRONLY, "open");
  EXPECT_THAT([&] { write_all(full, std::as_bytes(std::span("x")), "/dev/full"); },
              ThrowsMessage<UserError>(HasSubstr("cannot write /dev/full: No space left")));
}

TEST_F(Files, AreLockedUntilTheyAreClosed) {
  const auto path = folder_ / "lock";
  const auto other = open_file(path, O_RDWR | O_CREAT, "create");
  {
    const auto holder = open_file(path, O_RDWR, "open");
    EXPECT_TRUE(try_lock(holder));
    EXPECT_TRUE(try_lock(holder));
    EXPECT_FALSE(try_lock(other));
    EXPECT_EQ(errno, EWOULDBLOCK);
  }
  EXPECT_TRUE(try_lock(other));
}

TEST_F(Files, SwapTheirNames) {
  write_text(folder_ / "one", "1");
  fs::create_directory(folder_ / "other");
  ASSERT_TRUE(swap_names(folder_ / "one", folder_ / "other"));
  EXPECT_TRUE(fs::is_directory(folder_ / "one"));
  EXPECT_EQ(read_text(folder_ / "other", 1), "1");
  EXPECT_THAT([&] { swap_names(folder_ / "one", folder_ / "absent"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("absent"), HasSubstr("No such file"))));
}

TEST_F(Files, LinksAreReplacedInOneStep) {
  for (const std::string target : {"one", "two"}) {
    EXPECT_TRUE(replace_symlink(folder_ / "latest", target));
    EXPECT_EQ(fs::read_symlink(folder_ / "latest"), target);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

}  // namespace
}  // namespace shoal
