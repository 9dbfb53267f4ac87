#include "data/download.h"

#include <gmock/gmock.h>

#include "data/file_digest.h"
#include "data/http.h"
#include "data/http_server.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::HttpServer;
using test::read_file;
using test::TempFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A file of 100,000 bytes that can be downloaded from `url`.
class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() {
    setenv("no_proxy", "127.0.0.1", 1);
    for (int i = 0; i < 100'000; ++i) content += static_cast<char>('a' + i % 997 % 23);
    origin = folder.write("origin/sub/file.txt", content);
    checksum = sha256_of_file(origin);
    file_url = "file://" + (folder / "origin").string();
  }
  RemoteFile file(const std::string& url) {
    url_ = url;
    return {"sub/file.txt", url_, static_cast<std::int64_t>(content.size()), checksum};
  }
  fs::path target() const { return folder / "cache/sub/file.txt"; }
  fs::path partial() const { return folder / "cache/sub/file.txt.partial"; }
  void write_partial(const std::string& text) const { folder.write("cache/sub/file.txt.partial", text); }

  TempFolder folder;
  std::string content, checksum, file_url;
  fs::path origin;

 private:
  std::string url_;
};

TEST_F(DownloadTest, FromFilesAndServers) {
  HttpServer server(content);
  for (const auto& url : {file_url + "/sub/file.txt", server.url() + "/sub/file.txt"}) {
    download(url, file(url), target());
    EXPECT_EQ(read_file(target()), content);
    EXPECT_FALSE(fs::exists(partial()));
    fs::remove(target());
  }
}

TEST_F(DownloadTest, ResumesAPartialFile) {
  HttpServer server(content);
  write_partial(content.substr(0, 60'000));
  download(server.url(), file(server.url()), target());
  EXPECT_EQ(server.last_range(), "60000-");
  EXPECT_EQ(read_file(target()), content);
}

TEST_F(DownloadTest, AnInterruptedDownloadIsKeptAndGoesOn) {
  HttpServer server(content);
  server.break_after(30'000);
  EXPECT_THAT(user_error([&] { download(server.url(), file(server.url()), target()); }),
              HasSubstr(server.url()));
  EXPECT_FALSE(fs::exists(target()));
  EXPECT_EQ(fs::file_size(partial()), 30'000u);
  server.break_after(std::string::npos);
  download(server.url(), file(server.url()), target());
  EXPECT_EQ(server.last_range(), "30000-");
  EXPECT_EQ(read_file(target()), content);
}

TEST_F(DownloadTest, WhatWasResumedAndBreaksAgainIsKept) {
  HttpServer server(content);
  write_partial(content.substr(0, 60'000));
  server.break_after(10'000);
  user_error([&] { download(server.url(), file(server.url()), target()); });
  EXPECT_EQ(fs::file_size(partial()), 70'000u);
}

TEST_F(DownloadTest, StartsAgainWhereTheServerCannotResume) {
  HttpServer server(content, /*ranges=*/false);
  write_partial(content.substr(0, 60'000));
  download(server.url(), file(server.url()), target());
  EXPECT_EQ(read_file(target()), content);
}

TEST_F(DownloadTest, StartsAgainWhenThePartialFileWasWrong) {
  HttpServer server(content);
  for (const auto& rubbish :
       {std::string(50'000, '#'), std::string(100'000, '#'), std::string(120'000, '#')}) {
    write_partial(rubbish);
    download(server.url(), file(server.url()), target());
    EXPECT_EQ(read_file(target()), content);
    fs::remove(target());
  }
}

TEST_F(DownloadTest, RefusesAnotherFile) {
  for (const auto& wrong : {std::string(100'000, '#'), std::string(10, '#'), std::string(200'000, '#')}) {
    HttpServer server(wrong);
    EXPECT_THAT(user_error([&] { download(server.url(), file(server.url()), target()); }),
                HasSubstr("cannot be downloaded"));
    EXPECT_FALSE(fs::exists(target()));
    EXPECT_FALSE(fs::exists(partial()));
    EXPECT_EQ(server.requests(), 1);
  }
}

// A file system without locks: others may write the usual file at the same time.
TEST_F(DownloadTest, WithoutALockHasAFileOfItsOwn) {
  HttpServer server(content);
  write_partial("of another process");
  server.break_after(30'000);
  user_error([&] { download(server.url(), file(server.url()), target(), /*locked=*/false); });
  server.break_after(std::string::npos);
  download(server.url(), file(server.url()), target(), /*locked=*/false);
  EXPECT_EQ(server.last_range(), "");
  EXPECT_EQ(read_file(target()), content);
  EXPECT_EQ(read_file(partial()), "of another process");
  fs::remove(target());
  fs::remove(partial());
  EXPECT_TRUE(fs::is_empty(partial().parent_path()));
}

TEST_F(DownloadTest, FetchLooksAtHandThenInTheCacheThenFar) {
  const FetchOptions at_hand{(folder / "origin").string(), folder / "cache"};
  EXPECT_EQ(fetch(file("file:///nowhere/file.txt"), at_hand), origin);
  const FetchOptions mirror{file_url, folder / "cache"};
  EXPECT_EQ(fetch(file("file:///nowhere/file.txt"), mirror), target());
  EXPECT_EQ(read_file(target()), content);
  const FetchOptions cached{"", folder / "cache"};
  EXPECT_EQ(fetch(file("file:///nowhere/file.txt"), cached), target());
  fs::remove(target());
  EXPECT_EQ(fetch(file(file_url + "/sub/file.txt"), cached), target());
  fs::create_directories(folder / "empty");
  // A folder without the file is accepted, and a damaged file in the cache is downloaded again.
  folder.write("cache/sub/file.txt", "damaged");
  EXPECT_EQ(fetch(file(file_url + "/sub/file.txt"), {(folder / "empty").string(), folder / "cache"}),
            target());
  EXPECT_EQ(read_file(target()), content);
}

TEST_F(DownloadTest, IsMadeOnceForAllWhoFetchAtATime) {
  HttpServer server(content);
  const auto cache = folder / "cache";
  const auto wanted = file(server.url());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(read_file(fetch(wanted, {.from = "", .cache = cache})), content); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(server.requests(), 1);
}

TEST_F(DownloadTest, OfflineSaysWhatToPutWhere) {
  EXPECT_THAT(user_error([&] {
                fetch(file("http://127.0.0.1:1/sub/file.txt"), {"", folder / "cache"});
              }),
              AllOf(HasSubstr("http://127.0.0.1:1/sub/file.txt"), HasSubstr(target().string()),
                    HasSubstr("SHOAL_DATA_DIR")));
  EXPECT_FALSE(fs::exists(partial()));
}

TEST_F(DownloadTest, AWrongFileAtHandIsAnError) {
  EXPECT_THAT(user_error([&] {
                fetch(file("file:///nowhere"), {(folder / "none").string(), folder / "cache"});
              }),
              AllOf(HasSubstr("none"), HasSubstr("no such folder")));
  folder.write("origin/sub/file.txt", "something else");
  EXPECT_THAT(user_error([&] {
                fetch(file("file:///nowhere"), {(folder / "origin").string(), folder / "cache"});
              }),
              AllOf(HasSubstr("origin/sub/file.txt"), HasSubstr("checksum")));
}

TEST_F(DownloadTest, AnUnwritableCacheIsNamed) {
  folder.write("blocked", "a file, no folder");
  EXPECT_THAT(user_error([&] {
                fetch(file(file_url + "/sub/file.txt"), {"", folder / "blocked"});
              }),
              HasSubstr("blocked"));
}

TEST_F(DownloadTest, AFullDiskIsNamed) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  EXPECT_THAT(user_error([&] {
                http_append({.url = file_url + "/sub/file.txt"}, "/dev/full", "file.txt",
                            static_cast<std::int64_t>(content.size()));
              }),
              ::testing::StrEq("cannot write /dev/full: No space left on device"));
}

TEST(Download, ThePublishedChecksumsAreRight) {
  SHOAL_NEEDS_SHARED("tinyshakespeare.txt");
  const TempFolder cache;
  for (const auto& file : remote_files()) {
    if (!fs::exists(test::shared_data() / file.name)) continue;  // the larger ones
    EXPECT_EQ(fetch(file, {test::shared_data().string(), cache.path()}), test::shared_data() / file.name);
  }
}

// FIPS 180-4's own example.
TEST(Download, ChecksumsAreSha256) {
  const TempFolder folder;
  EXPECT_EQ(sha256_of_file(folder.write("abc", "abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Download, Gpt2VocabularyEndsUpInOneFolder) {
  SHOAL_NEEDS_SHARED("gpt2/encoder.json");
  const TempFolder folder;
  const FetchOptions options{(folder / "hand").string(), folder / "cache"};
  // One file is in the folder, the other in the cache.
  fs::create_directories(folder / "hand/gpt2");
  fs::create_directories(folder / "cache/gpt2");
  fs::copy_file(test::shared_data() / "gpt2/encoder.json", folder / "hand/gpt2/encoder.json");
  fs::copy_file(test::shared_data() / "gpt2/vocab.bpe", folder / "cache/gpt2/vocab.bpe");
  const auto found = fetch_gpt2_vocabulary(options);
  EXPECT_TRUE(fs::exists(found / "encoder.json"));
  EXPECT_TRUE(fs::exists(found / "vocab.bpe"));

  // Other processes may read the copy: it is not written again, and a damaged one is replaced in one step.
  const auto copy = found / "encoder.json";
  const auto long_ago = fs::file_time_type() + std::chrono::hours(1);
  fs::last_write_time(copy, long_ago);
  EXPECT_EQ(fetch_gpt2_vocabulary(options), found);
  EXPECT_EQ(fs::last_write_time(copy), long_ago);
  folder.write("cache/gpt2/encoder.json", "damaged");
  fs::create_hard_link(copy, folder / "read");
  EXPECT_EQ(fetch_gpt2_vocabulary(options), found);
  EXPECT_EQ(read_file(folder / "read"), "damaged");
  EXPECT_EQ(read_file(copy), read_file(folder / "hand/gpt2/encoder.json"));
}

}  // namespace
}  // namespace shoal
