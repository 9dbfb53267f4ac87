// Zip archives as torch.save writes them: entries where they lie in the file, and refusals of everything
// else.
#include "checkpoint/zip_file.h"

#include "checkpoint/torch_support.h"

namespace shoal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_of(const ZipEntry& entry) {
  return {reinterpret_cast<const char*>(entry.data.data()), entry.data.size()};
}
std::string refusal(const std::string& file) {
  return user_error([&] { read_zip(bytes_of(file), "a.pt"); });
}

const std::vector<RawEntry> kEntries = {
    {"archive/data.pkl", "pickle"}, {"archive/data/0", ""}, {"archive/data/10", "0123456789"}};

TEST(ZipFile, ReadsEntriesInEitherSizeOfNumbers) {
  for (const bool zip64 : {false, true}) {
    for (const std::string comment : {"", "a comment", "PK\x05\x06 and more than the record's bytes of it"}) {
      const auto file = zip_file(kEntries, zip64, comment);
      EXPECT_TRUE(is_zip(bytes_of(file)));
      const auto entries = read_zip(bytes_of(file), "a.pt");
      ASSERT_EQ(entries.size(), kEntries.size());
      for (const auto& expected : kEntries) {
        const auto* entry = find_entry(entries, expected.name);
        ASSERT_NE(entry, nullptr) << expected.name;
        EXPECT_EQ(text_of(*entry), expected.data);
        EXPECT_EQ((entry->data.data() - bytes_of(file).data()) % 64, 0);
      }
      EXPECT_EQ(find_entry(entries, "archive/data/1"), nullptr);
    }
  }
  EXPECT_FALSE(is_zip(bytes_of("PK")));
}

TEST(ZipFile, RefusesWhatTorchNeverWrites) {
  EXPECT_THAT(refusal(zip_file({{"a", "b", 8}})),
              AllOf(HasSubstr("a.pt: the zip entry \"a\" is compressed"), HasSubstr("zip -0")));
  EXPECT_THAT(refusal(zip_file({{"a", "b", 0, 1}})), HasSubstr("is encrypted"));
  EXPECT_THAT(refusal(zip_file({{"a", "b"}, {"a", "c"}})), HasSubstr("\"a\" is there twice"));
}

TEST(ZipFile, RefusesDamage) {
  const auto whole = zip_file(kEntries);
  EXPECT_THAT(refusal(""), HasSubstr("the directory is missing"));
  EXPECT_THAT(refusal(whole.substr(0, whole.size() - 1)), HasSubstr("the directory is missing"));
  auto moved = whole;
  moved[moved.size() - 6] ^= 1;  // of the directory
  EXPECT_THAT(refusal(moved), HasSubstr("an entry of the directory is expected"));
  // A directory that ends before its entries do.
  auto longer = zip_file({{"a", "b"}});
  longer[longer.size() - 12] = 2;
  EXPECT_THAT(refusal(longer), HasSubstr("an entry of the directory is expected"));
}

// Entries never lie outside the file, whatever byte is wrong and wherever it ends.
TEST(ZipFile, SurvivesEveryMutation) {
  const auto check = [](const std::string& file) {
    try {
      for (const auto& entry : read_zip(bytes_of(file), "a.pt")) {
        ASSERT_GE(entry.data.data(), bytes_of(file).data());
        ASSERT_LE(entry.data.data() + entry.data.size(), bytes_of(file).data() + file.size());
      }
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("a.pt"));
    }
  };
  for (const bool zip64 : {false, true}) {
    const auto good = zip_file(kEntries, zip64);
    for (std::size_t i = 0; i < good.size(); ++i) {
      EXPECT_NE(refusal(good.substr(0, i)), "");
      for (const int change : {1, 0x10, 0x80, 0xff}) {
        auto bad = good;
        bad[i] = static_cast<char>(bad[i] ^ change);
        check(bad);
      }
    }
  }
}

}  // namespace
}  // namespace shoal::test
