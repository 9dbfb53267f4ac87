#include "core/pickle.h"

#include <gmock/gmock.h>

#include "core/error.h"

namespace shoal {
namespace {

using namespace std::string_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::array<std::string_view, 3> kGlobals = {"collections.OrderedDict", "a.make", "a.Kind"};
constexpr PickleRules kRules{.globals = kGlobals, .advice = "save less"};

std::string error_of(const std::string& bytes) {
  try {
    Pickle(bytes, "meta.pkl", kRules);
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a UserError";
  return {};
}

// A value as Python prints it, of what `bytes` (without the last opcode) leave on the stack.
std::string show(const Pickle& pickle, const PickleValue& value) {
  const auto all = [&](std::size_t step) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < value.items.size(); i += step) {
      parts.push_back(show(pickle, pickle[value.items[i]]));
      if (step == 2) parts.back() += ": " + show(pickle, pickle[value.items[i + 1]]);
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  };
  switch (value.type) {
    case PickleType::none:
      return "None";
    case PickleType::boolean:
      return value.integer != 0 ? "True" : "False";
    case PickleType::integer:
      return std::to_string(value.integer);
    case PickleType::real:
      return fmt::format("{}", value.real);
    case PickleType::string:
      return fmt::format("'{}'", value.text);
    case PickleType::bytes:
      return fmt::format("b'{}'", value.text);
    case PickleType::list:
      return "[" + all(1) + "]";
    case PickleType::tuple:
      return "(" + all(1) + ")";
    case PickleType::dictionary:
      return "{" + all(2) + "}";
    case PickleType::global:
      return std::string(value.text);
    case PickleType::call:
      return "call " + all(1);
    case PickleType::persistent:
      return "persistent " + all(1);
  }
  return {};
}
std::string read(const std::string& bytes) {
  const auto whole = bytes + ".";
  const Pickle pickle(whole, "x", kRules);
  return show(pickle, pickle.root());
}

TEST(Pickle, ReadsEveryWidthOfNumbersAndStrings) {
  EXPECT_EQ(read("K\xff"), "255");
  EXPECT_EQ(read("M\x01\x02"), "513");
  EXPECT_EQ(read("J\xfe\xff\xff\xff"), "-2");
  EXPECT_EQ(read("I-17\n"), "-17");
  EXPECT_EQ(read("L123456789012L\n"), "123456789012");
  EXPECT_EQ(read("\x8a\x01\x80"), "-128");
  EXPECT_EQ(read("\x8a\x02\x80\x00"s), "128");
  EXPECT_EQ(read("\x8a\x00"s), "0");
  EXPECT_EQ(read("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), std::to_string(INT64_MAX));
  EXPECT_EQ(read("I01\n"), "True");
  EXPECT_EQ(read("\x89"), "False");
  EXPECT_EQ(read("N"), "None");
  EXPECT_EQ(read("G\xbf\xf8\0\0\0\0\0\0"s), "-1.5");
  EXPECT_EQ(read("F2.5e-1\n"), "0.25");
  EXPECT_EQ(read("\x8c\x02hi"), "'hi'");
  EXPECT_EQ(read("X\x02\0\0\0hi"s), "'hi'");
  EXPECT_EQ(read("\x8d\x02\0\0\0\0\0\0\0hi"s), "'hi'");
  EXPECT_EQ(read("Va\\u20ac\\U0001f600\xe9\n"), "'a€😀é'");
  EXPECT_EQ(read("C\x02hi"), "b'hi'");
  EXPECT_EQ(read("B\x02\0\0\0hi"s), "b'hi'");
  EXPECT_EQ(read("\x8e\x02\0\0\0\0\0\0\0hi"s), "b'hi'");
}

TEST(Pickle, ReadsContainers) {
  EXPECT_EQ(read("](K\x01K\x02"
                 "eK\x03"
                 "a"),
            "[1, 2, 3]");
  EXPECT_EQ(read("(K\x01K\x02l"), "[1, 2]");
  EXPECT_EQ(read(")\x85(K\x01K\x02t\x86"), "((()), (1, 2))");
  EXPECT_EQ(read("K\x01K\x02K\x03\x87"), "(1, 2, 3)");
  EXPECT_EQ(read("}(\x8c\x01"
                 "a]\x8c\x01"
                 "b}u\x8c\x01"
                 "cNs"),
            "{'a': [], 'b': {}, 'c': None}");
  EXPECT_EQ(read("(K\x01\x88"
                 "d"),
            "{1: True}");
  EXPECT_EQ(read("(]q\x05h\x05t"), "([], [])");
  EXPECT_EQ(read("\x8c\x01"
                 "a\x94h\x00\x86"s),
            "('a', 'a')");
}

// Names of classes stand for themselves, and calls are noted; only an OrderedDict becomes a dictionary.
TEST(Pickle, NotesGlobalsThatAreListed) {
  EXPECT_EQ(read("ca\nKind\n"), "a.Kind");
  EXPECT_EQ(read("\x8c\x01"
                 "a\x8c\x04Kind\x93"),
            "a.Kind");
  EXPECT_EQ(read("ca\nmake\nK\x07\x85R"), "call a.make, (7)");
  EXPECT_EQ(read("\x8c\x01kQ"), "persistent 'k'");
  EXPECT_EQ(read("ccollections\nOrderedDict\n)R(\x8c\x01kK\x01u}\x8c\x09_metadataNsb"), "{'k': 1}");
  EXPECT_THAT(error_of("ccollections\nOrderedDict\n]\x85R."), HasSubstr("made of arguments"));
  EXPECT_THAT(error_of("ca\nmake\n)R}b."), HasSubstr("sets attributes of an object"));
  EXPECT_THAT(error_of("K\x01)R."), HasSubstr("a call without a function"));
}

TEST(Pickle, TheLastValueOfAKeyCounts) {
  const auto bytes = "}(\x8c\x01xK\x01\x8c\x01xK\x02u."s;
  const Pickle pickle(bytes, "x");
  EXPECT_EQ(pickle.find(pickle.root(), "x")->integer, 2);
  EXPECT_EQ(pickle.find(pickle.root(), "y"), nullptr);
  EXPECT_EQ(pickle.find(*pickle.find(pickle.root(), "x"), "y"), nullptr);
}

// Pickles that would run a command if Python read them.
TEST(Pickle, RefusesCodeByItsName) {
  EXPECT_THAT(error_of("cos\nsystem\n(X\x0a\0\0\0echo ownedtR."s),
              AllOf(StartsWith("meta.pkl: byte 11: "), HasSubstr("os.system"),
                    HasSubstr("no code is executed"), HasSubstr("; save less")));
  EXPECT_THAT(error_of("\x80\x04\x8c\x02os\x8c\x06system\x93."), HasSubstr("os.system"));
  EXPECT_THAT(error_of("\x80\x04\x8c\x08"
                       "builtins\x8c\x04"
                       "eval\x93."),
              HasSubstr("builtins.eval"));
  EXPECT_THAT(error_of("(ios\nsystem\n."), HasSubstr("INST"));
  EXPECT_THAT(error_of("ca\nKind\n)\x81."), HasSubstr("NEWOBJ"));
  EXPECT_THAT(error_of("\x82\x01."), HasSubstr("EXT1"));
  EXPECT_THAT(error_of("S'text'\n."), HasSubstr("the opcode STRING"));
  EXPECT_THAT(error_of("\x7f"), HasSubstr("0x7F is not an opcode"));
}

TEST(Pickle, RefusesDamage) {
  for (const auto& bytes : {""s, "}"s, "K"s, "X\xff\xff\xff\xff"s, "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s,
                            "Iab"s, "\x95\xff\xff\xff\xff\xff\xff\xff\xff."s, "G\0\0."s, "ca\nKind"s}) {
    EXPECT_THAT(error_of(bytes), HasSubstr("ends too early")) << bytes;
  }
  for (const auto& bytes : {"."s,
                            "(."s,
                            "q\x01."s,
                            "h\x01."s,
                            "s."s,
                            "K\x01s."s,
                            "K\x01K\x02K\x03s."s,
                            "u."s,
                            "d."s,
                            "}(K\x01u."s,
                            "}(}K\x01u."s,
                            "(K\x01u."s,
                            "}((u."s,
                            "}(K\x01(u."s,
                            "a."s,
                            "K\x01"
                            "a."s,
                            "}K\x01"
                            "a."s,
                            "]((e."s,
                            "t."s,
                            "\x85."s,
                            "K\x01\x86."s,
                            "(\x85."s,
                            "K\x01K\x02\x93."s,
                            "R."s,
                            "b."s,
                            "}b."s,
                            "Q."s,
                            "(Q."s}) {
    EXPECT_THAT(error_of(bytes), HasSubstr("damaged")) << testing::PrintToString(bytes);
  }
  EXPECT_THAT(error_of("\x80\x06."), HasSubstr("protocol 6"));
  EXPECT_THAT(error_of("I99999999999999999999\n."), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("Ione\n."), HasSubstr("an integer is expected"));
  EXPECT_THAT(error_of("Fone\n."), HasSubstr("a number is expected"));
  EXPECT_THAT(error_of("\x8a\x09" + std::string(9, '\x01') + "."), HasSubstr("more than 8"));
  EXPECT_THAT(error_of("Va\\u20\n."), HasSubstr("escape"));
}

TEST(Pickle, AContainerWithinItselfIsNoTrap) {
  const auto bytes = "}q\x01(\x8c\x04selfh\x01u."s;
  const Pickle pickle(bytes, "x");
  EXPECT_EQ(pickle.find(pickle.root(), "self"), &pickle.root());
}

}  // namespace
}  // namespace shoal
