// Our own matrix products. Operands are packed into the order in which the tile kernel (tile.h) reads them,
// as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); rows of a left
// operand that is neither transposed nor widened are read where they are, as are small operands of floats
// with AVX-512 (product_block.h). What can be packed by the thread that multiplies it stays in that thread's
// cache, and is fetched while the thread multiplies what comes before. Every element is the sum of its terms
// along K in their order, cut into pieces that the shape alone decides, so its bits depend neither on the
// number of threads nor on its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/thread_team.h"
#include "ops/cpu/growing_memory.h"
#include "ops/cpu/matmul_call.h"
#include "ops/cpu/own_part.h"
#include "ops/kernel_sizes.h"

namespace shoal::cpu {

template <typename Unit>
struct ProductBlock;

class PackedProduct {
 public:
  PackedProduct(ThreadTeam& team, bool amx)
      : team_(team), amx_(amx), own_(static_cast<std::size_t>(team.size())) {}

  void operator()(const MatmulCall& call);
  // Bytes of the packed operands and partial sums of all products, at most.
  static std::size_t scratch_bytes(int threads, const KernelSizes& sizes, bool amx);

 private:
  template <typename Unit>
  void multiply(const MatmulCall& call);
  template <typename Unit>
  void multiply_terms(ProductBlock<Unit>& first, ProductBlock<Unit>& second);

  ThreadTeam& team_;
  bool amx_;  // tile registers multiply bfloat16
  GrowingMemory left_, right_, sums_, bias_;
  std::vector<OwnPart> own_;  // of each thread
};

}  // namespace shoal::cpu
