// Causal self-attention in tiles with a running maximum (FlashAttention-2, Dao 2023). The backward pass
// computes the gradients of keys and values in one kernel and those of queries in another, each summing in
// order, so that results do not depend on the order of blocks; both recompute the scores.
#pragma once

#include "ops/cuda/device.cuh"

namespace shoal::cuda {

// Offsets in qkv [B, T, 3, H, D], out [B, T, H, D] and lse [B, H, T].
struct Heads {
  std::int64_t B, T, H, D;
  float scale;  // 1 / sqrt(D)

  // Offsets of position 0; the next position is row() elements further.
  __host__ __device__ std::int64_t q(std::int64_t b, std::int64_t h) const { return (b * T * 3 * H + h) * D; }
  __host__ __device__ std::int64_t k(std::int64_t b, std::int64_t h) const { return q(b, h) + H * D; }
  __host__ __device__ std::int64_t v(std::int64_t b, std::int64_t h) const { return q(b, h) + 2 * H * D; }
  __host__ __device__ std::int64_t row() const { return 3 * H * D; }
  __host__ __device__ std::int64_t out(std::int64_t b, std::int64_t h) const { return (b * T * H + h) * D; }
  __host__ __device__ std::int64_t out_row() const { return H * D; }
  __host__ __device__ std::int64_t lse(std::int64_t b, std::int64_t h) const { return (b * H + h) * T; }
};

struct ForwardCall {
  void* out;
  float* lse;
  const void* qkv;
  Heads heads;
  std::int64_t first_head;
  Mask mask;
};

struct BackwardCall {
  void* dqkv;
  const void* dout;
  const float* delta;  // f32 [B, H, T]: dout . out
  const float* lse;
  const void* qkv;
  Heads heads;
  std::int64_t first_head;
  Mask mask;
};

// On tensor cores, for bfloat16, 64 channels a head and aligned addresses.
inline constexpr std::int64_t kTensorHead = 64;
void tensor_attention_forward(const ForwardCall& call, cudaStream_t stream);
void tensor_attention_backward(const BackwardCall& call, cudaStream_t stream);

// For any type, head and alignment.
template <typename T>
void plain_attention_forward(const ForwardCall& call, cudaStream_t stream);
template <typename T>
void plain_attention_backward(const BackwardCall& call, cudaStream_t stream);

}  // namespace shoal::cuda
