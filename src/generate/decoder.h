// A GPT-2 that reads texts position by position and keeps the keys and values of the positions read.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "model/layers.h"

namespace shoal {

// In a tensor-parallel group rank 0 makes the calls, and the other ranks follow() it: they share the model
// and its cache.
//
// Texts are numbered from 0. What is computed for one does not depend on the others, bit for bit: a row of
// the matrix products for new tokens depends neither on its place nor on the others
// (tests/ops/cpu_rows_test.cpp). Where it may depend on their number, that is always kFewRows.
class Decoder {
 public:
  // Takes all the memory it will ever need: for each text the keys and values of block_size positions in
  // every layer, and the activations of one layer. The store's weights are this tensor rank's; the group has
  // no sequence parallelism.
  Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts = 1,
          const TensorGroup& tensor = {});

  // On ranks but 0 of the group: computes what rank 0 asks for, until it calls dismiss().
  void follow();
  // On rank 0; does nothing in a group of one.
  void dismiss();

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

  // Makes text `to` the same as another.
  void copy(int to, int from);

  // Positions read of a text.
  std::int64_t length(int text) const { return lengths_[static_cast<std::size_t>(text)]; }

  // The logits of each text's next token: f32 [vocab_size] each, without padding, on the host until the next
  // call.
  std::vector<std::span<const float>> logits(std::span<const int> texts);

  const GptConfig& config() const { return context_.config; }

  // The bytes that the constructor takes.
  static std::size_t memory_bytes(const GptConfig& config, DType compute, int texts = 1,
                                  const TensorRank& tensor = {});

 private:
  struct Cache {
    Tensor keys, values;  // x [texts, block_size, H', D]
  };
  // The activations of one layer, R = max(block_size, kFewRows) rows; a shorter piece uses the first rows.
  struct Buffers {
    std::vector<Cache> cache;  // one per layer
    Tensor tokens;             // i32 [R]
    Tensor stream;             // f32 [R, C]
    Tensor mean, rstd;         // f32 [R]
    Tensor norm;               // x [R, C]
    Tensor qkv;                // x [R, 3 H' D]
    Tensor attention;          // x [R, H' D]
    Tensor branch;             // x [R, C]
    Tensor hidden, activated;  // x [R, F']
    Tensor last;      // f32 [texts, C]: the stream behind the last block at each text's last position
    Tensor logits;    // f32 [kFewRows, V' padded]
    Tensor gathered;  // f32 [size of the group, kFewRows, the largest V' padded]; empty in a group of one
    AdapterWork adapter;
    static Buffers take(Arena& arena, const GptConfig& config, DType compute, int texts,
                        const TensorRank& tensor);
  };
  // A call of rank 0, which the others join.
  struct Call {
    enum Kind : std::int32_t { prefill, extend, logits, score, copy, dismiss };
    std::int32_t kind = dismiss;
    std::int32_t count = 0;  // of tokens, texts or rows
    std::array<std::int32_t, 2 * kFewRows> numbers = {};
  };
  // Rows that share matrix products: a run of positions of a text, computed at once.
  struct Run {
    int text;
    std::int64_t position, row, rows;
  };

  Call shared(Call call) const;
  void read_all(int text, std::span<std::int32_t> tokens);
  void read_rows(std::span<const Token> tokens);
  void score_texts(std::span<const int> texts, float* out);
  void score_rows(std::int64_t first, float* out);
  void copy_text(int to, int from);
  void embed(const Run& run);
  void run_blocks(std::int64_t rows, std::span<const Run> runs);
  void keep_last(const Run& run);
  std::int64_t row_width() const;
  std::int64_t rows_for(std::size_t live) const;
  void make_logits(const Tensor& rows, float* out);

  LayerContext context_;
  Arena arena_;
  Buffers buffers_;
  EmbeddingLayer embedding_;
  std::vector<Block> blocks_;
  Head head_;
  std::vector<std::int64_t> lengths_;  // of texts
  std::vector<float> logits_, gathered_;
};

}  // namespace shoal
