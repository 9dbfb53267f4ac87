// Causal attention and its gradients as graphs that cuDNN recognises as flash attention.
//
// The graphs consist of products and element-wise steps, which cuDNN takes from 9.0 on and on every GPU from
// Ampere on; its single operation for attention has no causal mask before 9.21. The queries' gradient is the
// result of a product, not added up in memory, so cuDNN sums in a fixed order on Ampere and Hopper; for that
// it keeps B x H x T x T numbers of 2 bytes in its workspace.
#pragma once

#include "ops/cuda/cudnn/graph.h"
#include "ops/cuda/fused_attention.h"

namespace shoal::cuda::cudnn {

// By which a plan knows its tensors: of ops/kernels.h, delta f32 [B, H, T] and sums f32 [B, H, T, D] to work
// with, and scalars.
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
  kDqSums,
  kScale,   // 1 / sqrt(D)
  kUnseen,  // -infinity
  kOne      // 1
};

Graph forward_graph(const Functions& functions, const AttentionSizes& sizes);
// With the gradient of q added in a fixed order, for which the workspace has the gradients of all scores, or
// in any order, into kDqSums.
Graph backward_graph(const Functions& functions, const AttentionSizes& sizes);
Graph unordered_backward_graph(const Functions& functions, const AttentionSizes& sizes);

}  // namespace shoal::cuda::cudnn
