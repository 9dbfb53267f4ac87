#include "core/mapped_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

class MappedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "shoal-mapped-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

// Pages of files that this process holds in memory.
std::size_t resident_mib() {
  std::ifstream status("/proc/self/status");
  std::size_t kib = 0;
  for (std::string key; status >> key;) {
    if (key != "RssFile:" && key != "RssShmem:") continue;
    std::size_t value = 0;
    status >> value;
    kib += value;
  }
  return kib >> 10;
}

TEST_F(MappedMemoryTest, IsZeroedAlignedAndNameless) {
  const MappedMemory memory(folder_, 100001);
  EXPECT_EQ(memory.bytes().size(), 100001u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.bytes().data()) % 4096, 0u);
  EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(fs::is_empty(folder_)) << "nothing stays behind when the process is killed";
}

TEST_F(MappedMemoryTest, MoreThanMayBeResidentIsStreamedThrough) {
  constexpr std::size_t kMiB = std::size_t{1} << 20, kBytes = 256 * kMiB, kAllowed = 64;
  // Odd pieces, whose borders are within pages and words.
  constexpr std::size_t kPiece = 4 * kMiB + 4099;
  const MappedMemory memory(folder_, kBytes);
  const std::size_t before = resident_mib();
  for (int pass = 1; pass <= 3; ++pass) {
    for (std::size_t at = 0; at < kBytes; at += kPiece) {
      const auto piece = memory.bytes().subspan(at, std::min(kPiece, kBytes - at));
      ASSERT_TRUE(std::ranges::all_of(piece, [&](std::byte b) { return b == std::byte(pass - 1); }))
          << "what pass " << pass - 1 << " wrote at " << at;
      std::ranges::fill(piece, std::byte(pass));
      memory.done_with(piece);
      ASSERT_LT(resident_mib(), before + kAllowed);
    }
  }
}

TEST_F(MappedMemoryTest, Moves) {
  MappedMemory memory(folder_, 10);
  memory.bytes()[3] = std::byte{7};
  MappedMemory other = std::move(memory);
  EXPECT_EQ(other.bytes()[3], std::byte{7});
  other = MappedMemory(folder_, 0);
  EXPECT_TRUE(other.bytes().empty());
  other.done_with({});
}

TEST_F(MappedMemoryTest, AFolderThatIsNotThereIsTheUsersFault) {
  try {
    const MappedMemory memory(folder_ / "missing", 10);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("missing: no file for the run's state can be made here"));
  }
}

TEST_F(MappedMemoryTest, ADiskThatIsTooSmallIsFoundAtOnce) {
  const auto free = fs::space(folder_).available;
  try {
    const MappedMemory memory(folder_, free + (std::size_t{1} << 40));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::ContainsRegex("takes .*TiB on this disk, and .* are free"));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace shoal
