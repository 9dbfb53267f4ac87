// Tensor parallelism (Shoeybi et al. 2019, Megatron-LM) and its sequence parallelism (Korthikanti et al.
// 2022) as a rank sees them. Column-parallel products need all rows [B * T], row-parallel products leave
// partial sums. Between them, under sequence parallelism, every rank has only a range of the rows. A group of
// one does nothing.
#pragma once

#include <string_view>

#include "comm/communicator.h"
#include "model/partition.h"

namespace shoal {

class TensorGroup {
 public:
  TensorGroup() = default;  // a group of one
  TensorGroup(Communicator& ranks, bool sequence) : ranks_(&ranks), sequence_(sequence && ranks.size() > 1) {}

  TensorRank tensor_rank() const { return {.rank = rank(), .size = size(), .sequence = sequence_}; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  int size() const { return ranks_ ? ranks_->size() : 1; }
  bool sequence() const { return sequence_; }

  // This rank's rows of x [R, C] under sequence parallelism, else all of x.
  Tensor mine(const Tensor& x) const;
  // Gathers all ranks' `from` [R', C], which may be mine(x), into x [R, C]; nothing without sequence
  // parallelism. `purpose` is for errors and recordings: "activations of block.3".
  Request gather(const Tensor& x, const Tensor& from, std::string_view purpose) const;
  // Adds x [R, C] over the ranks. The sum is then in mine(x), and the other rows are not to be used.
  Request reduce(const Tensor& x, std::string_view purpose) const;
  // Adds (or takes the maximum of) numbers per token [n], which every rank gets whole, with or without
  // sequence parallelism.
  Request all_reduce(const Tensor& x, ReduceOp op, std::string_view purpose) const;
  // Gathers all ranks' x [n] into out [n * size], with or without sequence parallelism.
  Request all_gather(const Tensor& out, const Tensor& x, std::string_view purpose) const;
  // x [n] of rank 0 goes to all.
  Request broadcast(const Tensor& x, std::string_view purpose) const;

 private:
  Communicator* ranks_ = nullptr;
  bool sequence_ = false;
};

}  // namespace shoal
