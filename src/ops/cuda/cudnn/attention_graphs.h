// Causal attention and its gradients as graphs that cuDNN knows for flash attention.
//
// They are of single products and element-wise steps, which cuDNN takes from 9.0 on and on every GPU from
// Ampere on; its one operation for attention has no causal mask before 9.21. That the queries' gradient is a
// product's own result, not added up in memory, is what makes cuDNN take the sums in a fixed order, on Ampere
// and Hopper; it keeps B x H x T x T numbers of 2 bytes in its workspace for that.
#pragma once

#include "ops/cuda/cudnn/graph.h"
#include "ops/cuda/fused_attention.h"

namespace shoal::cuda::cudnn {

// By which a plan knows its tensors: of ops/kernels.h, delta f32 [B, H, T] to work with, and scalars.
enum Number : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kDelta,
  kScale,   // 1 / sqrt(D)
  kUnseen,  // -infinity
  kOne      // 1
};

Graph forward_graph(const Functions& functions, const AttentionSizes& sizes);
Graph backward_graph(const Functions& functions, const AttentionSizes& sizes);

}  // namespace shoal::cuda::cudnn
