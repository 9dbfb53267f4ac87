// Matrix products: our own (packed_product.h), but for the backward passes of float32 with AVX-512 and
// below AVX2, which are oneDNN's sgemm. Measured with AVX-512 on two Zen 4 cores over GPT-2's shapes
// (bench/results/ops.txt), sgemm reaches 93-98 % of the measured peak, and is up to 40 % faster for the
// weights' gradients of small models. On processors with AMX ours are 4 to 30 % faster than it.
//
// oneDNN always runs on one thread here: its choice of kernel, and whether it splits long sums, depends on
// its number of threads. Instead, each thread computes other pieces of the result (product_pieces.h).
#pragma once

#include <memory>

#include "core/thread_team.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/matmul_call.h"

namespace shoal::cpu {

class Matmul {
 public:
  Matmul(ThreadTeam& team, CpuLevel level);
  ~Matmul();
  void operator()(const MatmulCall& call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::cpu
