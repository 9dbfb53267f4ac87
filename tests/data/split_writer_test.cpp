#include "data/split_writer.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "data/temp_folder.h"
#include "data/token_file.h"

namespace shoal {
namespace {

using test::TempFolder;

TEST(SplitWriter, WritesWhatTokenFileReads) {
  const TempFolder folder;
  const std::vector<std::int32_t> ids = {0, 1, 65'534, 7};
  for (const int width : {2, 4}) {
    SplitWriter writer(folder / "a.bin", width);
    writer.append({});
    writer.append(std::span(ids).first(3));
    writer.append(std::span(ids).last(1));
    const auto meta = writer.finish();
    const TokenFile file(folder / "a.bin", width);
    std::vector<std::int32_t> read(4);
    ASSERT_EQ(file.size(), 4);
    file.copy(0, read);
    EXPECT_EQ(read, ids);
    EXPECT_EQ(meta.tokens, 4);
    EXPECT_EQ(meta.xxh64, file.checksum());
  }
}

TEST(SplitWriter, SaysWhenTheDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  SplitWriter writer("/dev/full", 2);
  const std::vector<std::int32_t> ids(1000, 1);
  writer.append(ids);
  try {
    writer.finish();
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("No space left"));
  }
}

}  // namespace
}  // namespace shoal
