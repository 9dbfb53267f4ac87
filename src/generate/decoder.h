// A GPT-2 that reads texts position by position and keeps the keys and values of the positions read.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/layers.h"

namespace shoal {

// Texts are numbered from 0. What is computed for one does not depend on the others, bit for bit: matrix
// products for new tokens always have the same number of rows, and a row does not depend on its place in them
// (tests/ops/cpu_rows_test.cpp).
class Decoder {
 public:
  // Takes all the memory it will ever need: for each text the keys and values of block_size positions in
  // every layer, and the activations of one layer.
  Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts = 1);

  // The logits behind a position: f32 [vocab_size], on the host during the call.
  using OnLogits = std::function<void(std::int64_t position, std::span<const float> logits)>;

  // Forgets what was read of a text and reads `tokens`, 1 to block_size, as positions 0, 1, ... in one pass.
  // Hands the logits of each position, in order, to on_logits where one is given.
  void prefill(int text, std::span<const std::int32_t> tokens, const OnLogits& on_logits = {});

  // Further tokens; a text may be there several times, with its tokens in order. No text may grow beyond
  // block_size. Reading tokens in one call gives the very bits of reading them one by one.
  struct Token {
    int text;
    std::int32_t id;
  };
  void extend(std::span<const Token> tokens);

  // Positions read of a text.
  std::int64_t length(int text) const { return lengths_[static_cast<std::size_t>(text)]; }

  // The logits of each text's next token: f32 [vocab_size] each, without padding, on the host until the next
  // call.
  std::vector<std::span<const float>> logits(std::span<const int> texts);

  const GptConfig& config() const { return context_.config; }

  // The bytes that the constructor takes.
  static std::size_t memory_bytes(const GptConfig& config, DType compute, int texts = 1);

 private:
  struct Cache {
    Tensor keys, values;  // x [texts, block_size, H, D]
  };
  // The activations of one layer, R = max(block_size, kRows) rows; a shorter piece uses the first rows.
  struct Buffers {
    std::vector<Cache> cache;  // one per layer
    Tensor tokens;             // i32 [R]
    Tensor stream;             // f32 [R, C]
    Tensor mean, rstd;         // f32 [R]
    Tensor norm;               // x [R, C]
    Tensor qkv;                // x [R, 3C]
    Tensor attention, branch;  // x [R, C]
    Tensor hidden, activated;  // x [R, 4C]
    Tensor last;    // f32 [texts, C]: the stream behind the last block at each text's last position
    Tensor logits;  // f32 [kRows, V padded]
    AdapterWork adapter;
    static Buffers take(Arena& arena, const GptConfig& config, DType compute, int texts);
  };
  // Rows that share matrix products: a run of positions of a text, computed at once.
  struct Run {
    int text;
    std::int64_t position, row, rows;
  };

  void embed(const Run& run);
  void run_blocks(std::int64_t rows, std::span<const Run> runs);
  void keep_last(const Run& run);
  Head::Activations head_activations() const;
  void score(std::int64_t positions, const OnLogits& on_logits);

  LayerContext context_;
  Arena arena_;
  Buffers buffers_;
  EmbeddingLayer embedding_;
  std::vector<Block> blocks_;
  Head head_;
  std::vector<std::int64_t> lengths_;  // of texts
  std::vector<float> logits_;
};

}  // namespace shoal
