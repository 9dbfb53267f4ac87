// A rank's side of tensor parallelism (Shoeybi et al. 2019, Megatron-LM) with its sequence parallelism
// (Korthikanti et al. 2022). Column-parallel products need whole rows of tokens, row-parallel products leave
// partial sums; between them, under sequence parallelism, every rank has a range of the rows [B * T] alone.
// A group of one does nothing.
#pragma once

#include <string_view>

#include "comm/communicator.h"
#include "model/partition.h"

namespace shoal {

class TensorGroup {
 public:
  TensorGroup() = default;  // of one
  TensorGroup(Communicator& ranks, bool sequence) : ranks_(&ranks), sequence_(sequence && ranks.size() > 1) {}

  TensorPlace place() const { return {.rank = rank(), .size = size(), .sequence = sequence_}; }
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  int size() const { return ranks_ ? ranks_->size() : 1; }
  bool sequence() const { return sequence_; }

  // This rank's rows of x [R, C] under sequence parallelism, else all of x.
  Tensor mine(const Tensor& x) const;
  // Makes x [R, C] whole from every rank's mine(x), or with `from` given from that; under sequence
  // parallelism only. `purpose` is for errors and recordings: "activations of block.3".
  Request gather(const Tensor& x, const Tensor& from, std::string_view purpose) const;
  // Adds x [R, C] over the ranks. mine(x), which is what a caller may use afterwards, is then the sum.
  Request reduce(const Tensor& x, std::string_view purpose) const;
  // The same, of numbers per token [n] that every rank needs whole; without sequence parallelism or with it.
  Request all_reduce(const Tensor& x, ReduceOp op, std::string_view purpose) const;

 private:
  Communicator* ranks_ = nullptr;
  bool sequence_ = false;
};

}  // namespace shoal
