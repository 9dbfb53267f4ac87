// Our own matrix products of bfloat16. Both operands are packed into the order in which the tile kernel
// (tile.h) reads them, as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (2008); rows of a left operand that is neither transposed nor widened are read where they are. Every
// element is the sum of its terms along K in their order, cut at multiples of a fixed depth, so its bits
// depend neither on the number of threads nor on its place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_team.h"
#include "ops/cpu/growing_memory.h"
#include "ops/cpu/matmul_call.h"

namespace shoal::cpu {

class PackedProduct {
 public:
  explicit PackedProduct(ThreadTeam& team) : team_(team) {}

  // Whether it takes the place of oneDNN's.
  static bool suits(DType type, bool amx) { return type == DType::bf16 && !amx; }
  void operator()(const MatmulCall& call);
  // Bytes of the packed operands and partial sums, at most, in a model with activations [rows, columns] and
  // logits [logit_rows, classes].
  static std::size_t scratch_bytes(std::int64_t rows, std::int64_t columns, std::int64_t logit_rows,
                                   std::int64_t classes);

 private:
  template <typename Unit>
  void multiply(const MatmulCall& call);

  ThreadTeam& team_;
  GrowingMemory left_, right_, sums_, bias_;
};

}  // namespace shoal::cpu
