// A GPT-2 that reads texts position by position and keeps the keys and values of the positions read.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/layers.h"
#include "ops/graph_replay.h"
#include "ops/pinned_memory.h"

namespace shoal {

// In a tensor-parallel group rank 0 makes the calls, and the other ranks follow() it: they share the model
// and its cache.
//
// Texts are numbered from 0. What is computed for one does not depend on the others, bit for bit: a row of
// the matrix products for new tokens depends neither on its place nor on the others, nor on their number
// (kFewRows, tests/ops/cpu_rows_test.cpp).
class Decoder {
 public:
  // Takes all the memory it will ever need: for each text the keys and values of block_size positions in
  // every layer, and the activations of one layer. The store's weights are this tensor rank's; the group has
  // no sequence parallelism. `capture`: the store has its weights at hand, so that a GPU can replay the
  // reading of tokens as a graph.
  Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts = 1,
          const TensorGroup& tensor = {}, bool capture = false);

  // On ranks but 0 of the group: computes what rank 0 asks for, until it calls dismiss().
  void follow();
  // On rank 0; does nothing in a group of one.
  void dismiss();

  // The logits behind a position: f32 [vocab_size], on the host during the call.
  using OnLogits = std::function<void(std::int64_t position, std::span<const float> logits)>;

  // Forgets what was read of a text and reads `tokens`, 1 to block_size, as positions 0, 1, ... in one pass.
  // Hands the logits of each position, in order, to on_logits where one is given.
  void prefill(int text, std::span<const std::int32_t> tokens, const OnLogits& on_logits = {});

  // Further tokens; those of one text follow one another. No text may grow beyond block_size. Reading tokens
  // in one call gives the very bits of reading them one by one.
  struct Token {
    int text;
    std::int32_t id;
  };
  void extend(std::span<const Token> tokens);

  // Makes text `to` the same as another.
  void copy(int to, int from);

  // Positions read of a text.
  std::int64_t length(int text) const { return lengths_[static_cast<std::size_t>(text)]; }

  // The logits of a text's next token: f32 [vocab_size], without padding, until more of the text is read.
  std::span<const float> logits(int text) const;

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
    Tensor rows;               // i32 [3 R]: the tokens, texts and positions of as many rows as are read
    Tensor stream;             // f32 [R, C]
    Tensor mean, rstd;         // f32 [R]
    Tensor norm;               // x [R, C]
    Tensor qkv;                // x [R, 3 H' D]
    Tensor attention;          // x [R, H' D]
    Tensor branch;             // x [R, C]
    Tensor hidden, activated;  // x [R, F']
    Tensor logits;             // f32 [kFewRows, V' padded]
    Tensor gathered;  // f32 [size of the group, kFewRows, the largest V' padded]; empty in a group of one
    AdapterWork adapter;
    static Buffers take(Arena& arena, const GptConfig& config, DType compute, int texts,
                        const TensorRank& tensor);
  };
  // A call of rank 0, which the others join.
  struct Call {
    enum Kind : std::int32_t { prefill, extend, score, copy, dismiss };
    std::int32_t kind = dismiss;
    std::int32_t count = 0;  // of tokens or rows
    std::array<std::int32_t, 2 * kFewRows> numbers = {};
  };

  Call shared(Call call) const;
  void read_prompt(int text, std::span<std::int32_t> tokens);
  void read_tokens(std::span<const Token> tokens);
  void read(std::int64_t rows, bool prompt);
  void run_blocks(const Tensor& stream, const CacheRows& rows);
  void compute_logits(std::int64_t first, std::int64_t rows);
  // One of the rows of logits that were computed last, and its place in pinned memory.
  struct Wanted {
    std::int64_t row;
    float* to;
  };
  void fetch_logits(std::int64_t rows, std::span<const Wanted> wanted);
  void copy_text(int to, int from);
  std::int64_t row_width() const;
  float* logits_of(int text) const;

  LayerContext context_;
  Arena arena_;
  Buffers buffers_;
  EmbeddingLayer embedding_;
  std::vector<Block> blocks_;
  Head head_;
  std::vector<std::int64_t> lengths_;  // of texts
  PinnedMemory logits_;                // f32 [texts + kFewRows, row_width()]; the last rows are a prompt's
  std::unique_ptr<Device::Event> computed_, copied_;  // logits
  std::vector<GraphReplay> replays_;                  // of 1, 2, ... kFewRows tokens
};

}  // namespace shoal
