#include "data/token_file.h"

#include <gmock/gmock.h>

#include "data/temp_folder.h"

namespace shoal {
namespace {

using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenFile, ReadsBothWidths) {
  const TempFolder folder;
  const TokenFile narrow(folder.write_ids<std::uint16_t>("a.bin", {1, 2, 65535, 4}), 2);
  const TokenFile wide(folder.write_ids<std::uint32_t>("b.bin", {1, 70000, 3}), 4);
  EXPECT_EQ(narrow.size(), 4);
  EXPECT_EQ(wide.size(), 3);
  std::vector<std::int32_t> ids(2);
  narrow.copy(2, ids);
  EXPECT_THAT(ids, ElementsAre(65535, 4));
  wide.copy(1, ids);
  EXPECT_THAT(ids, ElementsAre(70000, 3));
  EXPECT_EQ(narrow.max_id(), 65535u);
}

TEST(TokenFile, RefusesBadFiles) {
  const TempFolder folder;
  const auto open = [&](const std::string& name, int width) { TokenFile(folder / name, width); };
  EXPECT_THAT(user_error([&] { open("none.bin", 2); }),
              AllOf(HasSubstr("none.bin"), HasSubstr("shoal prepare")));
  folder.write("empty.bin", "");
  EXPECT_THAT(user_error([&] { open("empty.bin", 2); }), AllOf(HasSubstr("empty.bin"), HasSubstr("empty")));
  folder.write("odd.bin", "abc");
  EXPECT_THAT(user_error([&] { open("odd.bin", 2); }), AllOf(HasSubstr("3 bytes"), HasSubstr("uint16")));
  folder.write("six.bin", "abcdef");
  EXPECT_THAT(user_error([&] { open("six.bin", 4); }), HasSubstr("uint32"));
  EXPECT_THAT(user_error([&] { TokenFile(folder.path(), 2); }), HasSubstr("not a regular file"));
}

TEST(TokenFile, VerifyNamesTheFirstBadPosition) {
  const TempFolder folder;
  std::vector<std::uint16_t> ids(200'000, 7);
  ids[150'000] = 65;
  ids[190'000] = 99;
  TokenFile file(folder.write_ids("train.bin", ids), 2, 66);
  EXPECT_THAT(user_error([&] { file.verify(); }),
              AllOf(HasSubstr("99"), HasSubstr("190,000"), HasSubstr("66")));
  file.set_vocab_size(65);
  EXPECT_THAT(user_error([&] { file.verify(); }), HasSubstr("token 65 at position 150,000"));
  file.truncate(150'000);
  EXPECT_NO_THROW(file.verify());
}

TEST(TokenFile, VerifyRefusesIdsThatNoInt32Holds) {
  const TempFolder folder;
  const TokenFile file(folder.write_ids<std::uint32_t>("train.bin", {1, 0x80000000u}), 4);
  EXPECT_THAT(user_error([&] { file.verify(); }), HasSubstr("position 1 "));
}

}  // namespace
}  // namespace shoal
