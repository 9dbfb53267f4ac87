#include "parallel/data/gradient_tree.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/buffer.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

// Gradients whose sum depends on the order: large and small values of both signs.
float leaf(int index, std::int64_t element) {
  return std::ldexp(std::sin(static_cast<float>(7 * index + element + 1)), (index * 5) % 23);
}

// The same sum as a recursion: the largest complete subtree first.
float expected(int first, int count, std::int64_t element) {
  if (count == 1) return leaf(first, element);
  int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count)));
  if (left == count) left /= 2;
  return expected(first, left, element) + expected(first + left, count - left, element);
}

TEST(GradientTree, AddsInTheOrderOfOneTree) {
  const auto backend = make_cpu_backend(1);
  StateStream direct(*backend);
  GptConfig config{.n_layer = 1, .n_head = 1, .n_embd = 4, .block_size = 4, .vocab_size = 5};
  const ShardPlan plan(gpt_units(config), 0, 1, 0, 1);
  for (int leaves = 1; leaves <= 33; ++leaves) {
    const Buffer storage(*backend, DType::f32, {GradientTree::buffers(leaves) * plan.total()});
    GradientTree tree(direct, plan, leaves, storage);
    for (int step = 0; step < 2; ++step) {
      tree.begin_step();
      for (int i = 0; i < leaves; ++i) {
        for (int unit = 0; unit < plan.unit_count(); ++unit) {
          std::vector<float> values(static_cast<std::size_t>(plan.piece_size(unit)));
          for (std::size_t e = 0; e < values.size(); ++e) values[e] = leaf(i, static_cast<std::int64_t>(e));
          tree.add(unit, {values.data(), DType::f32, {plan.piece_size(unit)}});
        }
      }
      for (int unit = 0; unit < plan.unit_count(); ++unit) {
        const Tensor sum = tree.sum(unit);
        for (std::int64_t e = 0; e < 40; ++e) {
          ASSERT_EQ(sum.as<float>()[e], expected(0, leaves, e)) << leaves << " leaves, element " << e;
        }
      }
    }
  }
}

TEST(GradientTree, NeedsAsManyBuffersAsSubtreesAreOpen) {
  EXPECT_EQ(GradientTree::buffers(1), 1);
  EXPECT_EQ(GradientTree::buffers(2), 1);
  EXPECT_EQ(GradientTree::buffers(3), 2);
  EXPECT_EQ(GradientTree::buffers(8), 3);
}

}  // namespace
}  // namespace shoal::test
