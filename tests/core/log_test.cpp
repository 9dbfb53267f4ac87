// The log's file: its line format, and what happens when it cannot be opened.
#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "core/error.h"

namespace shoal {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class LogFile : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    log::set_level(log::Level::error);  // the console stays the test's
  }
  void TearDown() override {
    log::set_level(log::Level::info);
    log::detach_file();
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("shoal-log-test-" + std::to_string(getpid()));
};

TEST_F(LogFile, HasTimeAndLevelAndIsAppendedTo) {
  const auto path = folder_ / "train.log";
  log::attach_file(path);
  log::info("step {} loss {:.4f}", 3, 1.5);
  log::debug("not for files");
  log::detach_file();
  log::warn("after detaching");
  log::attach_file(path);
  log::warn("again");
  EXPECT_THAT(read_file(path), testing::MatchesRegex("\\[[0-9:]{8}  INFO\\] step 3 loss 1.5000\n"
                                                     "\\[[0-9:]{8}  WARN\\] again\n"));
}

TEST_F(LogFile, ThatCannotBeOpenedIsTheUsersFault) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(log::attach_file(folder_ / "file" / "train.log"), UserError);
}

}  // namespace
}  // namespace shoal
