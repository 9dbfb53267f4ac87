// Numbers, durations and near misses as people read them.
#include "core/text.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace shoal {
namespace {

TEST(Text, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.5 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.0 KiB");
}

TEST(Text, Counts) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1.0k");
  EXPECT_EQ(format_count(124439808), "124.4M");
  EXPECT_EQ(format_count(-2500), "-2.5k");
  EXPECT_EQ(format_count(3e18), "3.0E");
  EXPECT_EQ(format_count(1.5e21), "1500.0E") << "the last unit";
}

TEST(Text, Durations) {
  EXPECT_EQ(format_duration(0.25), "250 ms");
  EXPECT_EQ(format_duration(1), "1.0 s");
  EXPECT_EQ(format_duration(12), "12.0 s");
  EXPECT_EQ(format_duration(60), "1m 00s");
  EXPECT_EQ(format_duration(200), "3m 20s");
  EXPECT_EQ(format_duration(3600), "1h 00m");
  EXPECT_EQ(format_duration(3720), "1h 02m");
  EXPECT_EQ(format_duration(86400), "1d 00h");
  EXPECT_EQ(format_duration(90000), "1d 01h");
  EXPECT_EQ(format_duration(1e18), "11574074074074d 01h");
  EXPECT_EQ(format_duration(1e300), format_duration(1e18)) << "the longest";
}

TEST(Text, Lists) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(split_list(""), Parts{});
  EXPECT_EQ(split_list("one"), Parts{"one"});
  EXPECT_EQ(split_list("a,b b , \tc\n"), (Parts{"a", "b b", "c"}));
  EXPECT_EQ(split_list(" , ,x,,"), Parts{"x"});
}

TEST(Text, EndingsInAnyCase) {
  for (const char* name : {"a.zip", "A.ZIP", ".Zip"}) EXPECT_TRUE(ends_in_any_case(name, ".zip")) << name;
  for (const char* name : {"", "zip", "a.zip2", "a_zip"})
    EXPECT_FALSE(ends_in_any_case(name, ".zip")) << name;
}

TEST(Text, WordsOfAShell) {
  EXPECT_EQ(shell_word("parallel.stages=1,3"), "parallel.stages=1,3");
  EXPECT_EQ(shell_word("optim.frozen=embedding, block.0"), "'optim.frozen=embedding, block.0'");
  EXPECT_EQ(shell_word("it's $HOME"), R"('it'\''s $HOME')");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Text, Commas) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1003854), "1,003,854");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(-100), "-100");
}

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Text, NearestName) {
  const std::vector<std::string> keys{"n_layer", "n_head", "n_embd", "dropout"};
  EXPECT_EQ(nearest("n_layers", keys), "n_layer");
  EXPECT_EQ(nearest("drop_out", keys), "dropout");
  EXPECT_EQ(nearest("temperature", keys), "");
  EXPECT_EQ(nearest("--temp", {"--help", "--temperature"}), "--temperature");
  EXPECT_EQ(nearest("drop", {"draw", "dropout", "dropped_out"}), "dropout");
  EXPECT_EQ(nearest("anything", {}), "");
}

TEST(Errors, TheUsersFaultIsAKindOfError) {
  EXPECT_THROW(fail_user("no such key {}", "x"), UserError);
  EXPECT_THROW(fail_user("no such key {}", "x"), Error);
  try {
    fail("rank {} is gone", 3);
  } catch (const UserError&) {
    FAIL() << "not the user's fault";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 3 is gone");
  }
}

}  // namespace
}  // namespace shoal
