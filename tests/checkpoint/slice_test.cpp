#include "checkpoint/slice.h"

#include <set>

#include "checkpoint/checkpoint_support.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;

TensorSlice part(TensorSlice slice, std::int64_t begin, std::int64_t end) {
  slice.flat_begin = begin;
  slice.flat_end = end;
  return slice;
}

TEST(Slice, IdenticalSlicesAreOneRun) {
  const auto whole = whole_slice("w", DType::f32, {7, 5, 3});
  const auto plan = plan_copy(whole, std::vector{whole});
  ASSERT_EQ(plan.runs.size(), 1u);
  EXPECT_EQ(plan.runs[0].count, 105);
  EXPECT_EQ(plan.missing, 0);
}

TEST(Slice, RowShardsStayOneRunEach) {
  const Shape shape{8, 4};
  const std::vector halves = {box_slice("w", DType::f32, shape, 0, 0, 5),
                              box_slice("w", DType::f32, shape, 0, 5, 3)};
  EXPECT_EQ(plan_copy(whole_slice("w", DType::f32, shape), halves).runs.size(), 2u);
}

TEST(Slice, ScalarsAndEmptyTensors) {
  const auto scalar = whole_slice("s", DType::f32, Shape{});
  EXPECT_EQ(scalar.count(), 1);
  EXPECT_EQ(plan_copy(scalar, std::vector{scalar}).runs.size(), 1u);
  EXPECT_EQ(plan_copy(scalar, {}).missing, 1);
  const auto empty = whole_slice("e", DType::f32, {3, 0, 2});
  EXPECT_EQ(empty.count(), 0);
  EXPECT_EQ(plan_copy(empty, {}).missing, 0);
}

TEST(Slice, MissingElementsAreCountedAndLocated) {
  const Shape shape{4, 6};
  const auto whole = whole_slice("w", DType::f32, shape);
  // Columns 0..2 of all rows, and the first eight elements: row 1 lacks columns 3..5 but for 0 and 1 of
  // row 1.
  const std::vector sources = {box_slice("w", DType::f32, shape, 1, 0, 3), part(whole, 0, 8)};
  const auto plan = plan_copy(whole, sources);
  EXPECT_EQ(plan.missing, 9);
  EXPECT_EQ(plan.first_missing, 9);
  EXPECT_EQ(coordinates(whole, plan.first_missing), "[1, 3]");
  const auto column = box_slice("w", DType::f32, shape, 1, 4, 2);
  EXPECT_EQ(coordinates(part(column, 2, 8), 1), "[1, 5]");
}

TEST(Slice, OverlapsAreCopiedOnce) {
  const auto whole = whole_slice("w", DType::f32, {10});
  const auto plan = plan_copy(whole, std::vector{part(whole, 0, 6), part(whole, 3, 10), part(whole, 4, 5)});
  std::int64_t copied = 0;
  for (const auto& run : plan.runs) copied += run.count;
  EXPECT_EQ(copied, 10);
}

TEST(Slice, OnlyTheRowsInReachAreVisited) {
  // 2^40 rows: a loop over all rows would never end.
  const Shape shape{std::int64_t{1} << 40, 2};
  const auto column = box_slice("w", DType::bf16, shape, 1, 0, 1);
  const auto whole = whole_slice("w", DType::bf16, shape);
  const std::int64_t middle = std::int64_t{1} << 39;
  const auto plan = plan_copy(part(column, middle, middle + 3), std::vector{whole});
  ASSERT_EQ(plan.runs.size(), 3u);
  EXPECT_EQ(plan.runs[0].from, 2 * middle);
}

TEST(Slice, FaultsAreNamed) {
  const Shape shape{4, 6};
  EXPECT_EQ(fault_of(box_slice("w", DType::f32, shape, 1, 2, 4)), "");
  EXPECT_THAT(fault_of(box_slice("w", DType::f32, shape, 1, 3, 4)), HasSubstr("outside the tensor"));
  EXPECT_THAT(fault_of(box_slice("w", DType::f32, shape, 0, -1, 2)), HasSubstr("outside the tensor"));
  EXPECT_THAT(fault_of(part(whole_slice("w", DType::f32, shape), 5, 25)), HasSubstr("outside its box"));
  EXPECT_THAT(fault_of(part(whole_slice("w", DType::f32, shape), 5, 4)), HasSubstr("outside its box"));
  EXPECT_THAT(fault_of(whole_slice("", DType::f32, shape)), HasSubstr("no name"));
  const std::int64_t huge = std::int64_t{1} << 32;
  TensorSlice absurd = whole_slice("w", DType::f32, {1, 1});
  absurd.global_shape = {huge, huge};
  EXPECT_THAT(fault_of(absurd), HasSubstr("impossible"));
}

std::int32_t element(std::span<const std::byte> data, std::size_t i) {
  std::int32_t value = 0;
  std::memcpy(&value, &data[i * sizeof value], sizeof value);
  return value;
}

// Every pair of cuts of a small tensor, compared with the definition element by element.
TEST(Slice, PlansAgreeWithTheDefinition) {
  Dice dice(11);
  for (int round = 0; round < 400; ++round) {
    Shape shape;
    for (std::int64_t rank = dice.between(0, 4); rank > 0; --rank) shape.push_back(dice.between(1, 7));
    const TestTensor tensor("w", DType::i32, shape, static_cast<std::uint64_t>(round));
    const auto any_slice = [&] {
      TensorSlice slice = tensor.slice;
      // Boxes cut in any dimensions, which is more general than shards.
      for (int dim = 0; dim < shape.rank(); ++dim) {
        if (dice.between(0, 2) > 0) continue;
        slice.offset[dim] = dice.between(0, shape[dim] - 1);
        slice.shape[dim] = dice.between(1, shape[dim] - slice.offset[dim]);
      }
      const std::int64_t count = slice.shape.count();
      slice.flat_begin = dice.between(0, 1) * dice.between(0, count / 2);
      slice.flat_end = count - dice.between(0, 1) * dice.between(0, count / 2);
      return slice;
    };
    const TensorSlice target = any_slice();
    const std::vector sources = {any_slice(), any_slice(), any_slice()};
    const auto plan = plan_copy(target, sources);

    std::vector<std::byte> out(target.bytes());
    std::vector<bool> filled(static_cast<std::size_t>(target.count()));
    for (const auto& run : plan.runs) {
      const auto data = cut(tensor, sources[run.source]);
      std::memcpy(out.data() + run.to * 4, data.data() + run.from * 4,
                  static_cast<std::size_t>(run.count) * 4);
      for (std::int64_t i = 0; i < run.count; ++i) {
        ASSERT_FALSE(filled[static_cast<std::size_t>(run.to + i)]);
        filled[static_cast<std::size_t>(run.to + i)] = true;
      }
    }
    // An element is found exactly when one of the sources has it. All elements have different values.
    const auto expected = cut(tensor, target);
    std::set<std::int32_t> held;
    for (const auto& source : sources) {
      const auto data = cut(tensor, source);
      for (std::size_t i = 0; i < data.size(); i += 4) held.insert(element(data, i / 4));
    }
    std::int64_t missing = 0;
    for (std::size_t k = 0; k < filled.size(); ++k) {
      ASSERT_EQ(filled[k], held.contains(element(expected, k))) << to_string(target);
      if (!filled[k]) {
        ++missing;
      } else {
        ASSERT_EQ(element(out, k), element(expected, k));
      }
    }
    ASSERT_EQ(plan.missing, missing);
  }
}

}  // namespace
}  // namespace shoal::test
