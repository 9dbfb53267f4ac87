#include "generate/decoder.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {
namespace {

// The number of rows in the matrix products for new tokens. A single row is a few per cent faster per token,
// since these products wait for memory; with four rows, re-reading a text is four times as fast.
constexpr std::int64_t kPieceRows = 4;

Tensor first_rows(const Tensor& buffer, std::int64_t rows) { return buffer.row_range(0, rows); }
Tensor first_elements(const Tensor& buffer, std::int64_t n) { return {buffer.data, buffer.dtype, {n}}; }

}  // namespace

Decoder::Buffers Decoder::Buffers::take(Arena& arena, const GptConfig& config, DType compute) {
  const std::int64_t r = config.block_size, c = config.n_embd;
  Buffers buffers;
  for (int layer = 0; layer < config.n_layer; ++layer) {
    const Shape shape{r, config.n_head, config.head_size()};
    buffers.cache.push_back({.keys = arena.take(compute, shape), .values = arena.take(compute, shape)});
  }
  buffers.tokens = arena.take(DType::i32, {r});
  buffers.stream = arena.take(DType::f32, {r, c});
  buffers.mean = arena.take(DType::f32, {r});
  buffers.rstd = arena.take(DType::f32, {r});
  buffers.norm = arena.take(compute, {r, c});
  buffers.qkv = arena.take(compute, {r, 3 * c});
  buffers.attention = arena.take(compute, {r, c});
  buffers.branch = arena.take(compute, {r, c});
  buffers.hidden = arena.take(compute, {r, 4 * c});
  buffers.activated = arena.take(compute, {r, 4 * c});
  buffers.logits = arena.take(DType::f32, {1, padded_vocabulary(config)});
  return buffers;
}

std::size_t Decoder::memory_bytes(const GptConfig& config, DType compute) {
  Arena arena;
  Buffers::take(arena, config, compute);
  return arena.used();
}

Decoder::Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute)
    : context_{backend, store, config, compute},
      arena_(backend, memory_bytes(config, compute)),
      buffers_(Buffers::take(arena_, config, compute)),
      embedding_(store.units()),
      head_(store.units(), config),
      logits_(static_cast<std::size_t>(padded_vocabulary(config))) {
  for (int layer = 0; layer < config.n_layer; ++layer) blocks_.emplace_back(store.units(), config, layer);
}

void Decoder::prefill(std::span<const std::int32_t> tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n < 1 || n > config().block_size) fail("{} tokens do not fit a block of {}", n, config().block_size);
  length_ = 0;
  read({.start = 0, .rows = n, .first = 0, .live = n, .at_once = n}, tokens);
  prefilled_ = n;
}

void Decoder::extend(std::span<const std::int32_t> tokens) {
  if (length_ + static_cast<std::int64_t>(tokens.size()) > config().block_size) {
    fail("{} more tokens after {} do not fit a block of {}", tokens.size(), length_, config().block_size);
  }
  while (!tokens.empty()) {
    const std::int64_t first = (length_ - prefilled_) % kPieceRows, start = length_ - first;
    const std::int64_t rows = std::min(kPieceRows, config().block_size - start);
    const std::int64_t live = std::min(rows - first, static_cast<std::int64_t>(tokens.size()));
    read({.start = start, .rows = rows, .first = first, .live = live, .at_once = 1},
         tokens.first(static_cast<std::size_t>(live)));
    tokens = tokens.subspan(static_cast<std::size_t>(live));
  }
}

void Decoder::read(const Piece& piece, std::span<const std::int32_t> tokens) {
  const Tensor live = buffers_.tokens.reshaped({config().block_size, 1}).row_range(piece.first, piece.live);
  context_.backend.copy_from_host(live, tokens.data());
  read_blocks(piece);
  length_ = piece.start + piece.first + piece.live;
  last_row_ = piece.first + piece.live - 1;
}

// Runs the layers of training on the piece's rows. Every block attends to the cache, and overwrites the
// stream and the activations of the block before it.
void Decoder::read_blocks(const Piece& piece) {
  const std::int64_t n = piece.rows, h = config().n_head, d = config().head_size();
  const BatchAddress address{.first_position = piece.start, .training = false};
  const Tensor stream = first_rows(buffers_.stream, n).reshaped({1, n, config().n_embd});
  BlockActivations keep;
  keep.mean_1 = keep.mean_2 = first_elements(buffers_.mean, n);
  keep.rstd_1 = keep.rstd_2 = first_elements(buffers_.rstd, n);
  keep.norm_1 = keep.norm_2 = first_rows(buffers_.norm, n);
  keep.qkv = first_rows(buffers_.qkv, n).reshaped({1, n, 3, h, d});
  keep.attention = first_rows(buffers_.attention, n).reshaped({1, n, h, d});
  keep.middle = stream;
  keep.hidden = first_rows(buffers_.hidden, n);
  keep.activated = first_rows(buffers_.activated, n);
  Workspace work;
  work.branch = first_rows(buffers_.branch, n);

  embedding_.forward(context_, address, work, stream, first_elements(buffers_.tokens, n).reshaped({1, n}));
  BranchSum sum;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    sum = blocks_[layer].forward(
        context_, address, keep, work, stream, sum,
        [&](const Tensor& out, const Tensor& qkv) { attend(buffers_.cache[layer], piece, out, qkv); });
  }
  context_.backend.residual_forward(stream, sum.residual, sum.branch, sum.dropout);
}

void Decoder::attend(const Cache& cache, const Piece& piece, const Tensor& out, const Tensor& qkv) {
  const std::int64_t h = config().n_head, d = config().head_size(), n = piece.at_once;
  const Tensor outs = out.reshaped({piece.rows, h * d}), qkvs = qkv.reshaped({piece.rows, 3 * h * d});
  for (std::int64_t row = piece.first; row < piece.first + piece.live; row += n) {
    context_.backend.attention_cached(outs.row_range(row, n).reshaped({n, h, d}), cache.keys, cache.values,
                                      qkvs.row_range(row, n).reshaped({n, 3, h, d}), piece.start + row);
  }
}

std::span<const float> Decoder::logits() {
  Head::Activations keep;
  keep.mean = first_elements(buffers_.mean, 1);
  keep.rstd = first_elements(buffers_.rstd, 1);
  keep.norm = first_rows(buffers_.norm, 1);
  head_.logits(context_, keep, buffers_.stream.row_range(last_row_, 1), buffers_.logits);
  context_.backend.copy_to_host(logits_.data(), buffers_.logits);
  return std::span(logits_).first(static_cast<std::size_t>(config().vocab_size));
}

}  // namespace shoal
