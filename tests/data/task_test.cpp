// Tasks: items of files, and the tokens of an item. Expected texts follow lm-evaluation-harness' rules for
// these tasks.
#include "data/task.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Tasks : public ::testing::Test {
 protected:
  Task read(const std::string& lines) { return read_task(folder_.write("some.jsonl", lines)); }
  std::string error(const std::string& lines) {
    try {
      read(lines);
    } catch (const UserError& refused) {
      return refused.what();
    }
    return "";
  }
  test::TempFolder folder_;
};

TEST_F(Tasks, HellaSwagsTextsAreCleaned) {
  const auto task = read(
      R"({"activity_label":"Removing ice","ctx_a":"A man [x] sits.","ctx_b":"HE then","endings":["  goes on [header] ice.","says [title] no.  End","a"],"label":"1"})");
  EXPECT_EQ(task.name, "some");
  EXPECT_EQ(task.kind, Task::Kind::choice);
  ASSERT_EQ(task.items.size(), 1);
  EXPECT_EQ(task.items[0].context, "Removing ice: A man sits. He then");
  EXPECT_THAT(task.items[0].choices, ElementsAre("goes on ice.", "says. no. End", "a"));
  EXPECT_EQ(task.items[0].answer, 1);
}

TEST_F(Tasks, TheLastWordOfLambadaIsTheChoice) {
  const auto task = read("{\"text\":\"one two three\"}\n\n{\"text\":\"alone\"}\n");
  EXPECT_EQ(task.kind, Task::Kind::last_word);
  ASSERT_EQ(task.items.size(), 2);
  EXPECT_EQ(task.items[0].context, "one two");
  EXPECT_THAT(task.items[0].choices, ElementsAre("three"));
  EXPECT_EQ(task.items[1].context, "");
}

TEST_F(Tasks, OwnItemsNameTheirParts) {
  const auto task = read(R"({"context":"2 + 2 =","choices":["3","4"],"answer":1})");
  EXPECT_EQ(task.items[0].context, "2 + 2 =");
  EXPECT_EQ(task.items[0].answer, 1);
}

TEST_F(Tasks, ErrorsNameTheLine) {
  EXPECT_THAT(error("{\"text\":\"a b\"}\n{\"text\":1}\n"), HasSubstr("some.jsonl:2: no item of a task"));
  EXPECT_THAT(error("{\"text\":\"a b\"}\n{]\n"), HasSubstr("some.jsonl:2"));
  EXPECT_THAT(error(R"({"context":"a","choices":["b"],"answer":1})"),
              HasSubstr("the answer is number 1 of 1 choices"));
  EXPECT_THAT(error("{\"text\":\"a b\"}\n{\"context\":\"a\",\"choices\":[\"b\"],\"answer\":0}\n"),
              HasSubstr("some.jsonl:2: an item of another kind"));
  EXPECT_THAT(error("\n"), HasSubstr("has no items"));
}

TEST_F(Tasks, SequencesEndWithTheChoice) {
  const auto bytes = make_byte_tokenizer();
  const TaskItem item{.context = "ab ", .choices = {"c"}};
  const auto whole = make_sequence(item, 0, *bytes, 10);
  // The context's blank is the choice's.
  EXPECT_THAT(whole.tokens, ElementsAre('a', 'b', ' ', ' ', 'c'));
  EXPECT_EQ(whole.targets, 3);
  const auto cut = make_sequence(item, 0, *bytes, 3);
  EXPECT_THAT(cut.tokens, ElementsAre('b', ' ', ' ', 'c'));
  EXPECT_EQ(cut.targets, 3);
  EXPECT_THROW(make_sequence(item, 0, *bytes, 2), UserError);
  const auto alone = make_sequence({.context = "", .choices = {"c"}}, 0, *bytes, 10);
  EXPECT_THAT(alone.tokens, ElementsAre(*bytes->end_of_text(), ' ', 'c'));
  EXPECT_EQ(alone.targets, 2);
}

TEST_F(Tasks, CharactersAreNotBytes) { EXPECT_EQ(characters_of("aäあ"), 3); }

}  // namespace
}  // namespace shoal
