// The gradients of a step's micro-batches, added as one binary tree over their index: leaves 0 and 1, 2 and
// 3,
// ..., then the sums of neighbours, and so on; what is left over at the end is added from the youngest up.
// The order of the additions depends on the number of leaves alone, so whoever brings the leaves, the bits
// are the same.
#pragma once

#include <vector>

#include "parallel/data/shard_plan.h"
#include "parallel/data/state_stream.h"

namespace shoal {

class GradientTree {
 public:
  // Buffers that a tree of `leaves` needs at a time.
  static int buffers(int leaves);

  // `storage` f32 [buffers(leaves) * plan.total() / plan.ranks()]: a tree for this rank's piece of every
  // unit.
  GradientTree(StateStream& stream, const ShardPlan& plan, int leaves, const Tensor& storage);

  void begin_step();
  // The next leaf of a unit, f32 or bf16 [piece_size]; leaves come in their order.
  void add(int unit, const Tensor& leaf);
  // After the last leaf: f32 [piece_size], valid until the next begin_step. Where there have been no leaves:
  // memory of that size that is free until then.
  Tensor sum(int unit);

 private:
  struct Tree {
    std::int64_t leaves = 0;
    std::vector<int> sums;  // buffers that hold the sums of complete subtrees, the largest first
    std::vector<int> free;
  };
  Tensor buffer(int unit, int which) const;
  void merge_youngest(int unit, Tree& tree);

  StateStream& stream_;
  const ShardPlan& plan_;
  Tensor storage_;
  int buffers_;
  std::vector<Tree> trees_;
};

}  // namespace shoal
