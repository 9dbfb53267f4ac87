// The hosts that are listed and answer, with a remote shell that answers for the hosts that have a file.
#include "launch/host_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <thread>

#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;
using Hosts = std::vector<Host>;

class HostWatchTest : public ::testing::Test {
 protected:
  HostWatchTest() {
    const auto shell = folder_.write(
        "shell", "#!/bin/sh\ntest -e " + (folder_ / "$1").string() + " || { echo no route >&2; exit 1; }\n");
    ::chmod(shell.c_str(), 0755);
    answers("a");
    answers("b");
  }
  void answers(const std::string& host, bool yes = true) const {
    if (yes) {
      folder_.write(host, "");
    } else {
      std::filesystem::remove(folder_ / host);
    }
  }
  std::string list(const std::string& text) const { return folder_.write("hosts.txt", text).string(); }
  HostWatch watch_file(const std::string& text, double interval = 0) const {
    return HostWatch({.file = list(text),
                      .remote_shell = (folder_ / "shell").string(),
                      .program = "/bin/sh",
                      .interval = interval});
  }
  // Whether look() returns these hosts some time.
  static bool sees(HostWatch& watch, const Hosts& used, const Hosts& hosts) {
    for (int i = 0; i < 1000; ++i) {
      if (watch.look(used) == hosts) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  TempFolder folder_;
};

TEST_F(HostWatchTest, ReadsAFile) {
  EXPECT_EQ(read_hosts(list("# ours\na:2\n\n  b # with one rank\r\nc.example.org:16")),
            (Hosts{{"a", 2}, {"b", 1}, {"c.example.org", 16}}));
  const auto error_in = [&](const std::string& text) { return user_error([&] { read_hosts(list(text)); }); };
  EXPECT_THAT(error_in("a:2\nb slots=2\n"), HasSubstr("hosts.txt:2: 'b slots=2' is not a host; write HOST"));
  EXPECT_THAT(error_in("a:0"), HasSubstr("hosts.txt:1: 'a:0' is not a host"));
  EXPECT_THAT(error_in("a:2,b:2"), HasSubstr("hosts.txt:1: 'a:2,b:2' is not a host"));
  EXPECT_THAT(error_in("-oProxyCommand=x"), HasSubstr("is not a host"));
  EXPECT_THAT(error_in("a\n\na:2\n"), HasSubstr("hosts.txt:3: a is named twice"));
  EXPECT_THAT(error_in("a\nb:99999999999\n"), HasSubstr("hosts.txt:2: 'b:99999999999' makes more than"));
  EXPECT_THAT(error_in("# none\n"), HasSubstr("hosts.txt names no host"));
  EXPECT_THAT(user_error([&] { read_hosts(folder_ / "none.txt"); }), HasSubstr("none.txt: cannot read"));
  EXPECT_THAT(user_error([&] { read_hosts(folder_.path()); }), HasSubstr("cannot read"));
}

TEST_F(HostWatchTest, BoundsTheRanksOfAllHosts) {
  EXPECT_EQ(parse_hosts("a:400000,b:600000"), (Hosts{{"a", 400'000}, {"b", 600'000}}));
  const auto error_of = [](const std::string& text) { return user_error([&] { parse_hosts(text); }); };
  for (const std::string host : {"b:1000000", "b:2147483647", "b:99999999999"})
    EXPECT_EQ(error_of("a," + host),
              "--hosts: '" + host + "' makes more than 1,000,000 ranks in all; lower its number");
}

TEST_F(HostWatchTest, LeavesOutHostsThatDoNotAnswer) {
  auto watch = watch_file("a:2\nb:2\n");
  EXPECT_EQ(watch.check(), (Hosts{{"a", 2}, {"b", 2}}));
  EXPECT_EQ(watch.missing(), "");
  answers("b", false);
  EXPECT_EQ(watch.check(), (Hosts{{"a", 2}}));
  EXPECT_EQ(watch.missing(), "b");
  EXPECT_TRUE(sees(watch, {{"a", 2}}, {{"a", 2}}));
  answers("b");
  EXPECT_TRUE(sees(watch, {{"a", 2}}, {{"a", 2}, {"b", 2}}));
}

TEST_F(HostWatchTest, FollowsTheFile) {
  auto watch = watch_file("a:2\n");
  const Hosts a = {{"a", 2}};
  EXPECT_EQ(watch.check(), a);
  list("b:1\na:2\n");
  EXPECT_TRUE(sees(watch, a, {{"b", 1}, {"a", 2}}));
  list("b:1\n");
  EXPECT_TRUE(sees(watch, a, {{"b", 1}}));
  // With a mistake in it, it counts as it was.
  list("b:1\nc:\n");
  EXPECT_EQ(watch.check(), (Hosts{{"b", 1}}));
  list("");
  EXPECT_EQ(watch.check(), (Hosts{{"b", 1}}));
  std::filesystem::remove(folder_ / "hosts.txt");
  EXPECT_EQ(watch.check(), (Hosts{{"b", 1}}));
}

// The hosts in use are not asked: if they do not answer, the ranks will fail.
TEST_F(HostWatchTest, LooksAtTheOthersOnly) {
  auto watch = watch_file("a:2\nb:2\n");
  watch.check();
  answers("a", false);
  EXPECT_TRUE(sees(watch, {{"a", 2}}, {{"a", 2}, {"b", 2}}));
}

TEST_F(HostWatchTest, LeavesOutAHostUntilTheFileNamesItAnew) {
  auto watch = watch_file("a:2\nb:2\n", 100);
  watch.leave_out("b");
  EXPECT_EQ(watch.check(), (Hosts{{"a", 2}}));
  EXPECT_EQ(watch.missing(), "b");
  list("a:2\n");
  watch.check();
  list("a:2\nb:2\n");
  EXPECT_EQ(watch.check(), (Hosts{{"a", 2}, {"b", 2}}));
}

TEST_F(HostWatchTest, TakesSlotsForGood) {
  auto watch = watch_file("a:2\nb:1\n");
  EXPECT_TRUE(watch.take_slots("a", 1));
  EXPECT_EQ(watch.check(), (Hosts{{"a", 1}, {"b", 1}}));
  EXPECT_TRUE(watch.take_slots("b", 1));
  EXPECT_EQ(watch.check(), (Hosts{{"a", 1}}));
  EXPECT_FALSE(watch.take_slots("a", 1));  // the last one
  EXPECT_FALSE(watch.take_slots("c", 1));
  EXPECT_EQ(watch.check(), (Hosts{{"a", 1}}));
}

// This process may open so many files, those of before included.
class OpenFiles {
 public:
  explicit OpenFiles(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{most, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

 private:
  rlimit before_{};
};

TEST_F(HostWatchTest, ChecksManyHostsWithFewOpenFiles) {
  std::string text;
  Hosts hosts = {{"a", 1}};
  for (int i = 0; i < 100; ++i) {
    hosts.push_back({fmt::format("h{}", i), 1});
    answers(hosts.back().name);
    text += hosts.back().name + "\n";
  }
  const OpenFiles limit(250);
  EXPECT_THAT(check_hosts(hosts, (folder_ / "shell").string(), "/bin/sh"), testing::Each(""));
  auto watch = watch_file("a\n");
  watch.check();
  list("a\n" + text);
  EXPECT_TRUE(sees(watch, {{"a", 1}}, hosts));
}

// A run that is healthy does not end for that.
TEST_F(HostWatchTest, LooksAgainWhereACheckCannotStart) {
  auto watch = watch_file("a:2\nb:2\n");
  answers("b", false);
  watch.check();
  answers("b");
  {
    const OpenFiles none(0);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(watch.look({{"a", 2}}), (Hosts{{"a", 2}}));
  }
  EXPECT_TRUE(sees(watch, {{"a", 2}}, {{"a", 2}, {"b", 2}}));
}

}  // namespace
}  // namespace shoal::test
