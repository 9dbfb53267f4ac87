// The facts that all ranks must share, and errors on some of the ranks.
#include "train/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "core/error.h"
#include "data/temp_folder.h"

namespace shoal::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  run_threads({.ranks = ranks, .deadline_seconds = 60}, [&](World& world) { body(world.ranks); });
}

// The kind and message of the error that the run throws.
std::string failure(int ranks, const std::function<void(Communicator&)>& body) {
  try {
    on_ranks(ranks, body);
  } catch (const UserError& error) {
    return fmt::format("user: {}", error.what());
  } catch (const Error& error) {
    return fmt::format("other: {}", error.what());
  }
  return "none";
}

TEST(Agreement, TextsArriveWhole) {
  for (const int size : {1, 2, 3}) {
    on_ranks(size, [&](Communicator& ranks) {
      for (const std::size_t length : {0, 1, 3, 4, 5, 100'001}) {
        const std::string text(length, static_cast<char>('a' + length % 26));
        const int root = size - 1;
        EXPECT_EQ(broadcast_text(ranks, ranks.rank() == root ? text : "mine", root), text);
        EXPECT_EQ(first_text(ranks, ranks.rank() == root ? text : ""), text);
        const auto mine = ranks.rank() % 2 == 0 ? text : text + "!";
        const auto all = all_gather_text(ranks, mine);
        ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r)
          EXPECT_EQ(all[static_cast<std::size_t>(r)], r % 2 == 0 ? text : text + "!");
        if (size == 1) continue;
        if (ranks.rank() == root) send_text(ranks, text, 0);
        if (ranks.rank() == 0) {
          EXPECT_EQ(receive_text(ranks, root), text);
        }
      }
      EXPECT_EQ(first_text(ranks, ranks.rank() > 0 ? std::to_string(ranks.rank()) : ""), size > 1 ? "1" : "");
    });
  }
}

TEST(Agreement, AMistakeOfAllIsOne) {
  for (const int size : {1, 2, 4}) {
    EXPECT_EQ(failure(size, [](Communicator& ranks) { all_or_none(ranks, [] { fail_user("no data"); }); }),
              "user: no data");
  }
}

TEST(Agreement, AMistakeOfOneNamesItAndStopsTheOthers) {
  EXPECT_EQ(failure(4,
                    [](Communicator& ranks) {
                      all_or_none(ranks, [&] {
                        if (ranks.rank() == 2) fail_user("no data");
                      });
                      ADD_FAILURE() << "rank " << ranks.rank() << " went on";
                    }),
            "user: rank 2: no data");
}

TEST(Agreement, WhatOneRankDoesForAllFailsForAll) {
  EXPECT_EQ(failure(3,
                    [](Communicator& ranks) {
                      some_for_all(ranks, ranks.rank() == 0, [] { fail("no room"); });
                      ADD_FAILURE() << "rank " << ranks.rank() << " went on";
                    }),
            "other: no room");
  EXPECT_EQ(failure(3, [](Communicator& ranks) { some_for_all(ranks, ranks.rank() == 0, [] {}); }), "none");
}

TEST(Agreement, DifferentConfigsAreNamedWithBothValues) {
  const auto message = failure(3, [](Communicator& ranks) {
    Config config;
    if (ranks.rank() == 1) config.optim.lr = 0.5, config.run.name = "other";
    require_agreement(ranks, facts_of(config));
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr("user: rank 1: it was not started like rank 0"),
                    HasSubstr("optim.lr: 0.5 (rank 0 has 0.0006)"),
                    HasSubstr("run.name: \"other\" (rank 0 has \"\")"), Not(HasSubstr("optim.eps"))));
  EXPECT_EQ(failure(3, [](Communicator& ranks) { require_agreement(ranks, facts_of(Config())); }), "none");
  EXPECT_THAT(failure(2,
                      [](Communicator& ranks) {
                        auto facts = facts_of(Config());
                        if (ranks.rank() == 1) facts[0].value = "0.0.1";
                        require_agreement(ranks, facts);
                      }),
              HasSubstr("the version of Shoal: 0.0.1 (rank 0 has "));
}

// Two folders with the same names, sizes and largest ids.
TEST(Agreement, DifferentDataAreToldApart) {
  const TempFolder folder;
  std::vector<std::uint16_t> ids(200'000, 1);
  ids[7] = 9;
  for (const std::string name : {"a", "b", "c"}) {
    std::filesystem::create_directories(folder / name);
    if (name == "b") ids.back() = 2;
    folder.write_ids(name + "/train.bin", ids);
    folder.write_ids(name + "/val.bin", std::vector<std::uint16_t>{1, 9, 1});
    if (name == "c") folder.write_ids("c/test.bin", std::vector<std::uint16_t>{1});
  }
  const auto compare = [&](const std::string& other) {
    return failure(2, [&](Communicator& ranks) {
      const std::filesystem::path path = folder / (ranks.rank() == 0 ? "a" : other);
      auto facts = facts_of(Dataset(path));
      for (auto& fact : facts) {  // as on two hosts with equal paths
        if (fact.name.starts_with(path.string())) fact.name.erase(0, path.string().size());
      }
      require_agreement(ranks, facts);
    });
  };
  EXPECT_EQ(compare("a"), "none");
  EXPECT_THAT(compare("b"),
              AllOf(HasSubstr("/train.bin: 200,000 tokens, checksum"), Not(HasSubstr("val.bin"))));
  EXPECT_THAT(compare("c"), HasSubstr("/test.bin: 1 tokens"));
}

}  // namespace
}  // namespace shoal::test
