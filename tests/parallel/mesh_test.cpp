#include "parallel/mesh.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "comm/recording.h"
#include "comm/world.h"
#include "core/error.h"

namespace shoal {

void PrintTo(const MeshCoordinate& coordinate, std::ostream* out) {
  *out << to_string(coordinate, {.workers = 2});
}

namespace test {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr MeshShape kShapes[] = {{1, 1, 1}, {2, 1, 1}, {1, 3, 1},    {1, 1, 4},    {3, 1, 2},
                                 {2, 2, 2}, {3, 2, 1}, {1, 1, 1, 4}, {1, 2, 1, 3}, {2, 1, 2, 2}};

std::string description(const MeshShape& shape) {
  return fmt::format("{} x {} x {} x {}", shape.workers, shape.pipeline, shape.data, shape.tensor);
}

TEST(MeshCoordinates, NeighboursAreOfOneTensorGroupThenOfOneStage) {
  const MeshShape shape{2, 3, 4};
  EXPECT_EQ(shape.ranks(), 24);
  EXPECT_EQ(coordinate_of(shape, 0), (MeshCoordinate{0, 0, 0}));
  EXPECT_EQ(coordinate_of(shape, 3), (MeshCoordinate{0, 0, 3}));
  EXPECT_EQ(coordinate_of(shape, 4), (MeshCoordinate{0, 1, 0}));
  EXPECT_EQ(coordinate_of(shape, 12), (MeshCoordinate{1, 0, 0}));
  EXPECT_EQ(coordinate_of(shape, 23), (MeshCoordinate{1, 2, 3}));
  EXPECT_EQ(to_string(coordinate_of(shape, 23), shape), "pipeline 1, data 2, tensor 3");
}

TEST(MeshCoordinates, AWorkerIsARangeOfRanks) {
  const MeshShape shape{2, 3, 4, 5};
  EXPECT_EQ(shape.ranks_of_worker(), 24);
  EXPECT_EQ(shape.ranks(), 120);
  EXPECT_EQ(coordinate_of(shape, 23), (MeshCoordinate{1, 2, 3, 0}));
  EXPECT_EQ(coordinate_of(shape, 24), (MeshCoordinate{0, 0, 0, 1}));
  EXPECT_EQ(to_string(coordinate_of(shape, 119), shape), "worker 4, pipeline 1, data 2, tensor 3");
}

TEST(MeshCoordinates, EveryRankHasItsOwn) {
  for (const auto& shape : kShapes) {
    std::set<std::tuple<int, int, int, int>> seen;
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      const auto [pipeline, data, tensor, worker] = coordinate_of(shape, rank);
      EXPECT_LT(worker, shape.workers);
      EXPECT_LT(pipeline, shape.pipeline);
      EXPECT_LT(data, shape.data);
      EXPECT_LT(tensor, shape.tensor);
      seen.emplace(pipeline, data, tensor, worker);
    }
    EXPECT_EQ(seen.size(), shape.ranks()) << description(shape);
  }
}

// The ranks of the run in a group, in the group's order.
std::vector<std::int32_t> members(Communicator& group, int rank) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.size()));
  std::int32_t mine = rank;
  group.all_gather({all.data(), DType::i32, {group.size()}}, {&mine, DType::i32, {1}}).wait();
  return all;
}

// The ranks whose coordinates pass a test, in order.
template <typename F>
std::vector<std::int32_t> ranks_where(const MeshShape& shape, F&& passes) {
  std::vector<std::int32_t> ranks;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    if (passes(coordinate_of(shape, rank))) ranks.push_back(rank);
  }
  return ranks;
}

TEST(MeshGroups, DifferInTheirOwnCoordinateAlone) {
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(description(shape));
    run_threads({.ranks = shape.ranks(), .deadline_seconds = 60}, [&](World& world) {
      const int rank = world.ranks.rank();
      Mesh mesh(world.ranks, shape);
      const MeshCoordinate me = coordinate_of(shape, rank);
      EXPECT_EQ(mesh.shape(), shape);
      EXPECT_EQ(mesh.coordinate(), me);
      const auto expect = [&](Communicator& group, auto&& passes) {
        EXPECT_THAT(members(group, rank), ElementsAreArray(ranks_where(shape, passes)));
      };
      const auto ours = [&](const MeshCoordinate& p) { return p.worker == me.worker; };
      const auto stages = [&](const MeshCoordinate& p) {
        return ours(p) && p.data == me.data && p.tensor == me.tensor;
      };
      const auto is_end = [&](const MeshCoordinate& p) {
        return p.pipeline == 0 || p.pipeline + 1 == shape.pipeline;
      };
      expect(mesh.world(), [](const MeshCoordinate&) { return true; });
      expect(mesh.worker(), ours);
      expect(mesh.peers(), [&](const MeshCoordinate& p) {
        return p.pipeline == me.pipeline && p.data == me.data && p.tensor == me.tensor;
      });
      expect(mesh.data(), [&](const MeshCoordinate& p) {
        return ours(p) && p.pipeline == me.pipeline && p.tensor == me.tensor;
      });
      expect(mesh.tensor(), [&](const MeshCoordinate& p) {
        return ours(p) && p.pipeline == me.pipeline && p.data == me.data;
      });
      expect(mesh.activations(), stages);
      expect(mesh.gradients(), stages);
      expect(mesh.model(), [&](const MeshCoordinate& p) { return ours(p) && p.data == me.data; });
      expect(mesh.ends(),
             [&](const MeshCoordinate& p) { return stages(p) && (p == me || (is_end(p) && is_end(me))); });
    });
  }
}

// A rank's number in a group is its coordinate, for any number of ranks.
TEST(MeshGroups, KnowTheirCoordinateAmongThousands) {
  const MeshShape shape{8, 64, 8};
  for (const int rank : {0, 1, 8, 511, 512, 2047, 4095}) {
    Recording recording(shape.ranks(), rank);
    Mesh mesh(recording.ranks(), shape);
    EXPECT_EQ(mesh.coordinate(),
              (MeshCoordinate{mesh.activations().rank(), mesh.data().rank(), mesh.tensor().rank()}));
    EXPECT_EQ(mesh.activations().size(), 8);
    EXPECT_EQ(mesh.data().size(), 64);
    EXPECT_EQ(mesh.tensor().size(), 8);
    EXPECT_EQ(mesh.model().size(), 64);
    EXPECT_EQ(mesh.ends().size(), rank < 512 || rank >= 4096 - 512 ? 2 : 1);
  }
}

// Found from the receiver of a message to the next member.
TEST(MeshGroups, NeighboursInAGroupAreAsFarApartAsTheMeshSays) {
  Recording recording(24, 0);
  Mesh mesh(recording.ranks(), {2, 3, 4});
  float value = 0;
  const Tensor x{&value, DType::f32, {1}};
  const auto peer = [&](Communicator& group) {
    recording.clear();
    group.send(x, 1).wait();
    return recording.links().begin()->first;
  };
  EXPECT_EQ(peer(mesh.tensor()), 1);
  EXPECT_EQ(peer(mesh.data()), 4);
  EXPECT_EQ(peer(mesh.activations()), 12);
  EXPECT_EQ(peer(mesh.ends()), 12);
}

TEST(MeshGroups, AnotherNumberOfRanksIsRefused) {
  Recording recording(6, 0);
  EXPECT_THAT(
      [&] {
        Mesh(recording.ranks(), {2, 2, 2});
      },
      ThrowsMessage<Error>(HasSubstr("a mesh of 1 x 2 x 2 x 2 is not one of 6 ranks")));
  EXPECT_EQ(Mesh(recording.ranks()).shape(), (MeshShape{1, 6, 1})) << "data ranks alone";
}

}  // namespace
}  // namespace test
}  // namespace shoal
