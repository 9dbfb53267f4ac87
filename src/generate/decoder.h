// A GPT-2 that reads a text position by position and keeps the keys and values of the positions read.
#pragma once

#include <span>
#include <vector>

#include "model/layers.h"

namespace shoal {

class Decoder {
 public:
  // Takes all the memory it will ever need: the keys and values of block_size positions for every layer, and
  // the activations of one layer.
  Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute);

  // Forgets what was read and reads `tokens`, 1 to block_size, as positions 0, 1, ... in one pass.
  void prefill(std::span<const std::int32_t> tokens);

  // Reads further tokens, while length() stays within block_size. Every position goes through matrix products
  // of the same size in the same row, however many tokens a call brings: reading a text again in one call
  // gives the very bits of reading it token by token.
  void extend(std::span<const std::int32_t> tokens);

  // Positions read.
  std::int64_t length() const { return length_; }

  // The logits of the next token: f32 [vocab_size], without padding, on the host until the next call.
  std::span<const float> logits();

  const GptConfig& config() const { return context_.config; }

  // The bytes that the constructor takes.
  static std::size_t memory_bytes(const GptConfig& config, DType compute);

 private:
  struct Cache {
    Tensor keys, values;  // x [block_size, H, D]
  };
  // The activations of one layer, R = block_size rows; a shorter piece uses the first rows.
  struct Buffers {
    std::vector<Cache> cache;  // one per layer
    Tensor tokens;             // i32 [R]
    Tensor stream;             // f32 [R, C]
    Tensor mean, rstd;         // f32 [R]
    Tensor norm;               // x [R, C]
    Tensor qkv;                // x [R, 3C]
    Tensor attention, branch;  // x [R, C]
    Tensor hidden, activated;  // x [R, 4C]
    Tensor logits;             // f32 [1, V padded]
    static Buffers take(Arena& arena, const GptConfig& config, DType compute);
  };
  // Consecutive positions that share matrix products. Only the live rows are new. The others give the
  // products their size, and nothing reads them.
  struct Piece {
    std::int64_t start, rows;  // positions [start, start + rows)
    std::int64_t first, live;  // live rows [first, first + live)
    std::int64_t at_once;      // live rows per call of the attention
  };

  void read(const Piece& piece, std::span<const std::int32_t> tokens);
  void read_blocks(const Piece& piece);
  void attend(const Cache& cache, const Piece& piece, const Tensor& out, const Tensor& qkv);

  LayerContext context_;
  Arena arena_;
  Buffers buffers_;
  EmbeddingLayer embedding_;
  std::vector<Block> blocks_;
  Head head_;
  std::vector<float> logits_;
  std::int64_t prefilled_ = 0, length_ = 0, last_row_ = 0;
};

}  // namespace shoal
