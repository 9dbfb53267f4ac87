#include "parallel/data/shard_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"

namespace shoal::test {
namespace {

const GptConfig kConfig{.n_layer = 2, .n_head = 1, .n_embd = 7, .block_size = 5, .vocab_size = 50257};

ShardPlan plan(int zero, int replicate, int rank, int ranks) {
  return {gpt_units(kConfig), zero, replicate, rank, ranks};
}

TEST(ShardPlan, ShardsAndPiecesTileEveryUnit) {
  for (const auto& [zero, replicate, ranks] : {std::tuple(0, 1, 6),
                                               {1, 1, 6},
                                               {3, 1, 6},
                                               {2, 2, 6},
                                               {3, 3, 6},
                                               {1, 6, 6},
                                               {3, 1, 1},
                                               {3, 1, 1024}}) {
    std::set<std::int64_t> pieces;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto p = plan(zero, replicate, rank, ranks);
      for (int u = 0; u < p.unit_count(); ++u) {
        EXPECT_GE(p.padded(u), p.unit(u).size);
        EXPECT_EQ(p.my_piece(u).begin % ShardPlan::kBlock, 0);
        EXPECT_EQ(p.my_piece(u) & p.my_shard(u), p.my_piece(u)) << "a piece is in its shard";
        EXPECT_EQ(p.my_piece(u).begin, p.my_shard(u).begin + p.replica() * p.piece_size(u));
      }
      pieces.insert(p.my_piece(0).begin);
    }
    EXPECT_EQ(pieces.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(*pieces.rbegin() + plan(zero, replicate, 0, ranks).piece_size(0),
              plan(zero, replicate, 0, ranks).padded(0));
  }
}

TEST(ShardPlan, NeighboursHoldDifferentShards) {
  const auto p = plan(1, 2, 0, 6);
  EXPECT_EQ(p.shards(), 3);
  EXPECT_EQ(members_of([&](int rank) { return p.in_shards(rank); }, 6, 4), (std::vector{3, 4, 5}));
  EXPECT_EQ(members_of([&](int rank) { return p.in_replicas(rank); }, 6, 4), (std::vector{1, 4}));
  EXPECT_EQ(members_of([&](int rank) { return p.in_pieces(rank); }, 6, 4), (std::vector{0, 3, 1, 4, 2, 5}));
}

TEST(ShardPlan, ZeroStageZeroReplicatesEverything) {
  const auto p = plan(0, 1, 2, 4);
  EXPECT_EQ(p.shards(), 1);
  EXPECT_EQ(p.my_shard(1), (ElementRange{0, p.padded(1)}));
}

TEST(ShardPlan, RefusesReplicasThatDoNotDivide) { EXPECT_THROW(plan(1, 4, 0, 6), Error); }

}  // namespace
}  // namespace shoal::test
