// Causal self-attention in tiles with a running maximum (FlashAttention-2, Dao 2023). The backward pass
// computes the gradients of keys and values in one kernel and those of queries in another, each summing in
// order, so that results do not depend on the order of blocks; both recompute the scores.
#pragma once

#include "ops/cuda/device.cuh"
#include "ops/cuda/memory.h"

namespace shoal::cuda {

// Offsets in qkv [B, T, 3, H, D], out [B, T, H, D] and lse [B, H, T].
struct Heads {
  std::int64_t B, T, H, D;
  float scale;             // 1 / sqrt(D)
  std::int64_t first = 0;  // of the B H heads, the one of a grid's first block

  // Offsets of position 0; the next position is row() elements further.
  __host__ __device__ std::int64_t q(std::int64_t b, std::int64_t h) const { return (b * T * 3 * H + h) * D; }
  __host__ __device__ std::int64_t k(std::int64_t b, std::int64_t h) const { return q(b, h) + H * D; }
  __host__ __device__ std::int64_t v(std::int64_t b, std::int64_t h) const { return q(b, h) + 2 * H * D; }
  __host__ __device__ std::int64_t row() const { return 3 * H * D; }
  __host__ __device__ std::int64_t out(std::int64_t b, std::int64_t h) const { return (b * T * H + h) * D; }
  __host__ __device__ std::int64_t out_row() const { return H * D; }
  __host__ __device__ std::int64_t lse(std::int64_t b, std::int64_t h) const { return (b * H + h) * T; }
};
inline constexpr int kMostChannels = 192;  // of a head
// The heads of qkv [B, T, 3, H, D]. Throws Error for more channels.
Heads heads_of(const Tensor& qkv);

// A head of a sequence. Divisions of 64 bits would take longer than a tile's copy.
struct SequenceHead {
  std::int64_t b, h;
};
__device__ inline SequenceHead head_of(const Heads& at, std::uint32_t block) {
  const std::uint32_t which = static_cast<std::uint32_t>(at.first) + block,
                      H = static_cast<std::uint32_t>(at.H);
  return {which / H, which % H};
}

// A dropout mask as bits, 1 for a kept score, in tiles of 64 queries and 64 keys; of a head, those at and
// below the diagonal. A tile is uint32 [4][32]: the bits of 16 rows, of them those of the lane that has them
// as accumulators of a product (attention_tensor.cu).
inline constexpr std::int64_t kMaskTile = 64, kMaskTileWords = kMaskTile * kMaskTile / 32;
struct MaskBits {
  // A row is a query: bit 4 n + 2 r + e of lane 4 g + t is for query g + 8 r, key 8 n + 2 t + e.
  std::uint32_t* by_query = nullptr;
  // A row is a key: bit 8 (n / 2) + 4 r + 2 (n % 2) + e is for key g + 8 r, query 8 n + 2 t + e.
  std::uint32_t* by_key = nullptr;  // in the backward pass
};
__host__ __device__ inline std::int64_t mask_tiles(std::int64_t T) { return (T + kMaskTile - 1) / kMaskTile; }
// The first word of a tile; those of equal queries follow one another.
__host__ __device__ inline std::int64_t mask_word(std::int64_t head, std::int64_t T, int queries, int keys) {
  const std::int64_t tiles = mask_tiles(T);
  return (head * (tiles * (tiles + 1) / 2) + queries * (queries + 1) / 2 + keys) * kMaskTileWords;
}
// The bits of `count` heads from at.first on.
void draw_mask(const MaskBits& to, const Heads& at, std::int64_t count, std::int64_t first_head,
               const Mask& mask, cudaStream_t stream);

struct ForwardCall {
  void* out;
  float* lse;  // null where nobody asks
  const void* qkv;
  Heads heads;
  std::int64_t first_head;
  Mask mask;
};

struct BackwardCall {
  void* dqkv;
  const void* dout;
  const float* delta;  // f32 [B, H, T]: dout . out; the kernels on tensor cores compute it
  const float* lse;
  const void* qkv;
  Heads heads;
  std::int64_t first_head;
  Mask mask;
  const void* out = nullptr;
};

// On tensor cores, for bfloat16, 64 channels a head and aligned addresses.
inline constexpr std::int64_t kTensorHead = 64;
void tensor_attention_forward(const ForwardCall& call, KernelScratch& scratch, cudaStream_t stream);
void tensor_attention_backward(const BackwardCall& call, KernelScratch& scratch, cudaStream_t stream);

// For any type, head and alignment.
template <typename T>
void plain_attention_forward(const ForwardCall& call, cudaStream_t stream);
template <typename T>
void plain_attention_backward(const BackwardCall& call, cudaStream_t stream);

}  // namespace shoal::cuda
