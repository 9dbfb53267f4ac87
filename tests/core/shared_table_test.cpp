#include "core/shared_table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <iterator>
#include <thread>

namespace shoal {
namespace {

namespace fs = std::filesystem;

class SharedTables : public testing::Test {
 protected:
  SharedTables() {
    std::string pattern = fs::temp_directory_path() / "shoal-table-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    file_ = folder_ / "table.txt";
  }
  ~SharedTables() override { fs::remove_all(folder_); }

  static bool any(std::string_view) { return true; }
  // The answer of a new table object on the file; it makes `value` if the key is missing.
  std::string ask(const std::string& key, const std::string& value) const {
    return SharedTable(file_).find_or_make(key, any, [&] { return value; });
  }
  std::string text() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& text) const { std::ofstream(file_, std::ios::binary) << text; }

  fs::path folder_, file_;
};

TEST_F(SharedTables, TheFirstValueHolds) {
  EXPECT_EQ(SharedTable(file_).find("a b"), std::nullopt);
  EXPECT_EQ(ask("a b", "1 2"), "1 2");
  EXPECT_EQ(ask("a b", "other"), "1 2");
  EXPECT_EQ(ask("a", "3"), "3");  // a key that another one begins with
  EXPECT_EQ(SharedTable(file_).find("a b"), "1 2");
  EXPECT_EQ(SharedTable(file_).find("a"), "3");
}

TEST_F(SharedTables, WhatIsNoLineOfItsOwnIsPassedOver) {
  ask("first", "1");
  ask("second", "2");
  std::string damaged = text();
  damaged[damaged.find("first") + 6] = '7';
  write(std::string("\0of somebody else's\n\n", 21) + damaged.substr(0, damaged.size() - 1));  // and torn
  EXPECT_EQ(SharedTable(file_).find("first"), std::nullopt);
  EXPECT_EQ(ask("second", "other"), "2");
  EXPECT_EQ(ask("first", "3"), "3");
  EXPECT_EQ(ask("first", "other"), "3");
  EXPECT_EQ(ask("second", "other"), "2");
  write(damaged.substr(0, damaged.size() - 2));
  EXPECT_EQ(ask("second", "4"), "4");
  EXPECT_EQ(ask("second", "other"), "4");
}

TEST_F(SharedTables, AValueThatWillNotDoIsMadeAnew) {
  ask("key", "old");
  const auto renew = [&] {
    return SharedTable(file_).find_or_make(
        "key", [](std::string_view value) { return value != "old"; }, [] { return "new"; });
  };
  EXPECT_EQ(renew(), "new");
  EXPECT_EQ(renew(), "new");
  EXPECT_EQ(ask("key", "other"), "new");
}

TEST_F(SharedTables, WithoutAFileNothingIsShared) {
  write("a file, no folder");
  for (const fs::path& nowhere : {fs::path(), file_ / "table.txt", folder_ / "none" / "table.txt"}) {
    const SharedTable table(nowhere);
    EXPECT_EQ(table.find_or_make("key", any, [] { return "1"; }), "1");
    EXPECT_EQ(table.find_or_make("key", any, [] { return "2"; }), "2");
    EXPECT_EQ(table.find("key"), std::nullopt);
  }
}

TEST_F(SharedTables, AFailureLeavesTheLock) {
  EXPECT_THROW(
      SharedTable(file_).find_or_make("key", any, []() -> std::string { throw std::runtime_error("no"); }),
      std::runtime_error);
  EXPECT_EQ(ask("key", "1"), "1");
}

// Each makes a value of its own and takes its time for it.
TEST_F(SharedTables, ProcessesAtOnceAgree) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  constexpr int kProcesses = 4;
  std::array<pid_t, kProcesses> children{};
  for (int child = 0; child < kProcesses; ++child) {
    children[static_cast<std::size_t>(child)] = ::fork();
    if (children[static_cast<std::size_t>(child)] != 0) continue;
    const auto value = SharedTable(file_).find_or_make("key", any, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return std::to_string(child);
    });
    ::_exit(value.size() == 1 && ::write(ends[1], value.data(), 1) == 1 ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  std::string answers(kProcesses, ' ');
  EXPECT_EQ(::read(ends[0], answers.data(), kProcesses), kProcesses);
  EXPECT_EQ(answers, std::string(kProcesses, answers[0]));
  EXPECT_EQ(SharedTable(file_).find("key"), answers.substr(0, 1));
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace shoal
