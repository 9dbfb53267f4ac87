#include "parallel/data/gradient_tree.h"

#include <bit>

namespace shoal {

int GradientTree::buffers(int leaves) {
  // After k leaves there is a sum for every bit that is set in k; the most that any k has.
  return std::bit_width(static_cast<unsigned>(leaves) + 1) - 1;
}

GradientTree::GradientTree(StateStream& stream, const ShardPlan& plan, int leaves, const Tensor& storage)
    : stream_(stream), plan_(plan), storage_(storage), buffers_(buffers(leaves)) {
  trees_.resize(plan.units().size());
}

void GradientTree::begin_step() {
  for (auto& tree : trees_) {
    tree = {};
    for (int i = buffers_; i-- > 0;) tree.free.push_back(i);
  }
}

Tensor GradientTree::buffer(int unit, int which) const {
  const std::int64_t before = plan_.first(unit) / plan_.ranks() * buffers_;
  return part_of(storage_, before + which * plan_.piece_size(unit), plan_.piece_size(unit));
}

void GradientTree::merge_youngest(int unit, Tree& tree) {
  const int younger = tree.sums.back();
  tree.sums.pop_back();
  stream_.add(buffer(unit, tree.sums.back()), buffer(unit, younger));
  tree.free.push_back(younger);
}

void GradientTree::add(int unit, const Tensor& leaf) {
  auto& tree = trees_[static_cast<std::size_t>(unit)];
  const auto index = static_cast<std::uint64_t>(tree.leaves++);
  if (index % 2 == 1) {
    stream_.add(buffer(unit, tree.sums.back()), leaf);
  } else {
    tree.sums.push_back(tree.free.back());
    tree.free.pop_back();
    stream_.convert(buffer(unit, tree.sums.back()), leaf);
  }
  // The leaf completes a subtree for every further bit that is carried.
  for (int merges = std::countr_one(index) - 1; merges > 0; --merges) merge_youngest(unit, tree);
}

Tensor GradientTree::sum(int unit) {
  auto& tree = trees_[static_cast<std::size_t>(unit)];
  while (tree.sums.size() > 1) merge_youngest(unit, tree);
  return buffer(unit, tree.sums.empty() ? 0 : tree.sums.front());
}

}  // namespace shoal
