// Matrix products: our own (packed_product.h) in bfloat16 where there are no tiles of AMX, and in float32
// with AVX2, where oneDNN's take twice as long for rows of 3072 floats, and in forward passes with AVX-512,
// where they take 3 to 6 % longer. Others through oneDNN: its matmul primitives, made once per shape and
// kept, and in float32 for the backward products its sgemm. Measured with AVX-512 on two Zen 4 cores over
// GPT-2's shapes (bench/results/ops.txt): sgemm reaches 93-98 % of the measured peak, and is up to a tenth
// faster than matmul where the left operand is transposed or the sum is long. The same choice is the best
// with oneDNN 3.7 (bench/results/onednn.md).
//
// oneDNN always runs on one thread here: its choice of kernel, and whether it splits long sums, depends on
// its number of threads. Instead, each thread computes other pieces of the result (product_pieces.h).
#pragma once

#include <memory>

#include "core/thread_team.h"
#include "ops/cpu/matmul_call.h"

namespace shoal::cpu {

class Matmul {
 public:
  explicit Matmul(ThreadTeam& team);
  ~Matmul();
  void operator()(const MatmulCall& call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::cpu
