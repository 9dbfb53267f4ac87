// Matrix products of bfloat16 by vdpbf16ps, for processors that have it and no tile registers (Zen 4 and 5,
// Cooper Lake). Both operands are packed into the order in which the tile kernel reads them, as in Goto and
// van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008); rows of a left operand that is
// not transposed are read where they are. Every element is the sum of its pairs along K in their order, cut
// at multiples of a fixed depth, so its bits depend neither on the number of threads nor on its place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_team.h"
#include "ops/cpu/growing_memory.h"
#include "ops/cpu/matmul_call.h"

namespace shoal::cpu {

class Bfloat16Product {
 public:
  explicit Bfloat16Product(ThreadTeam& team) : team_(team) {}

  // Whether this build has the instructions.
  static bool compiled();
  // Whether a call's pairs along K are whole, or can be made so while they are packed.
  static bool takes(const MatmulCall& call);
  void operator()(const MatmulCall& call);
  // Bytes of the packed operands and partial sums, at most, in a model with activations [rows, columns].
  static std::size_t scratch_bytes(std::int64_t rows, std::int64_t columns);

 private:
  ThreadTeam& team_;
  GrowingMemory left_, right_, sums_;
};

}  // namespace shoal::cpu
