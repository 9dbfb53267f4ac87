#include "generate/decoder.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {
namespace {

// The number of rows in the matrix products for new tokens. These products wait for the weights, so that
// eight rows take little longer than one.
constexpr std::int64_t kRows = 8;

Tensor first_rows(const Tensor& buffer, std::int64_t rows) { return buffer.row_range(0, rows); }
Tensor first_elements(const Tensor& buffer, std::int64_t n) { return {buffer.data, buffer.dtype, {n}}; }

}  // namespace

Decoder::Buffers Decoder::Buffers::take(Arena& arena, const GptConfig& config, DType compute, int texts) {
  const std::int64_t r = std::max<std::int64_t>(config.block_size, kRows), c = config.n_embd;
  Buffers buffers;
  for (int layer = 0; layer < config.n_layer; ++layer) {
    const Shape shape{texts, config.block_size, config.n_head, config.head_size()};
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
  buffers.last = arena.take(DType::f32, {texts, c});
  buffers.logits = arena.take(DType::f32, {kRows, padded_vocabulary(config)});
  buffers.adapter = AdapterWork::take(arena, config, r, compute, {});
  return buffers;
}

std::size_t Decoder::memory_bytes(const GptConfig& config, DType compute, int texts) {
  Arena arena;
  Buffers::take(arena, config, compute, texts);
  return arena.used();
}

Decoder::Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts)
    : context_{backend, store, config, compute},
      arena_(backend, memory_bytes(config, compute, texts)),
      buffers_(Buffers::take(arena_, config, compute, texts)),
      embedding_(store.units()),
      head_(store.units(), config),
      lengths_(static_cast<std::size_t>(texts)) {
  for (int layer = 0; layer < config.n_layer; ++layer) blocks_.emplace_back(store.units(), config, layer);
  // Rows without a token take part in products, and nothing reads their results.
  for (const auto& buffer : {buffers_.stream, buffers_.attention}) backend.zero(buffer);
}

void Decoder::prefill(int text, std::span<const std::int32_t> tokens, const OnLogits& on_logits) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n < 1 || n > config().block_size) fail("{} tokens do not fit a block of {}", n, config().block_size);
  context_.backend.copy_from_host(first_elements(buffers_.tokens, n), tokens.data());
  const Run all{.text = text, .position = 0, .row = 0, .rows = n};
  embed(all);
  run_blocks(n, {&all, 1});
  keep_last(all);
  lengths_[static_cast<std::size_t>(text)] = n;
  if (on_logits) score(n, on_logits);
}

void Decoder::extend(std::span<const Token> tokens) {
  std::vector<std::int32_t> ids;
  std::vector<Run> runs;
  while (!tokens.empty()) {
    const auto live = tokens.first(std::min<std::size_t>(kRows, tokens.size()));
    ids.clear();
    runs.clear();
    for (const auto& [text, id] : live) {
      auto& length = lengths_[static_cast<std::size_t>(text)];
      if (length == config().block_size) fail("a text of {} tokens fills its block", length);
      runs.push_back({.text = text, .position = length++, .row = std::ssize(runs), .rows = 1});
      ids.push_back(id);
    }
    context_.backend.copy_from_host(first_elements(buffers_.tokens, std::ssize(ids)), ids.data());
    for (const auto& run : runs) embed(run);
    run_blocks(kRows, runs);
    for (const auto& run : runs) keep_last(run);
    tokens = tokens.subspan(live.size());
  }
}

void Decoder::embed(const Run& run) {
  const auto tokens = buffers_.tokens.reshaped({buffers_.tokens.count(), 1}).row_range(run.row, run.rows);
  embedding_.forward(context_, {.first_position = run.position, .training = false}, {},
                     buffers_.stream.row_range(run.row, run.rows).reshaped({1, run.rows, config().n_embd}),
                     tokens.reshaped({1, run.rows}));
}

// Runs the layers of training on the first rows. Every block attends to the cache, and overwrites the stream
// and the activations of the block before it.
void Decoder::run_blocks(std::int64_t n, std::span<const Run> runs) {
  const std::int64_t h = config().n_head, d = config().head_size();
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
  work.adapter = buffers_.adapter;

  const auto of_text = [&](const Tensor& cache, int text) {
    return cache.reshaped({cache.dim(0), cache.count() / cache.dim(0)})
        .row_range(text, 1)
        .reshaped({config().block_size, h, d});
  };
  BranchSum sum;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const auto attend = [&](const Tensor& out, const Tensor& qkv) {
      const auto& [keys, values] = buffers_.cache[layer];
      const Tensor outs = out.reshaped({n, h * d}), qkvs = qkv.reshaped({n, 3 * h * d});
      for (const auto& [text, position, row, rows] : runs) {
        context_.backend.attention_cached(outs.row_range(row, rows).reshaped({rows, h, d}),
                                          of_text(keys, text), of_text(values, text),
                                          qkvs.row_range(row, rows).reshaped({rows, 3, h, d}), position);
      }
    };
    sum = blocks_[layer].forward(context_, {.training = false}, keep, work, stream, sum, attend);
  }
  context_.backend.residual_forward(stream, sum.residual, sum.branch, sum.dropout);
}

void Decoder::keep_last(const Run& run) {
  context_.backend.convert(buffers_.last.row_range(run.text, 1),
                           buffers_.stream.row_range(run.row + run.rows - 1, 1));
}

Head::Activations Decoder::head_activations() const {
  Head::Activations keep;
  keep.mean = first_elements(buffers_.mean, kRows);
  keep.rstd = first_elements(buffers_.rstd, kRows);
  keep.norm = first_rows(buffers_.norm, kRows);
  return keep;
}

// The logits of the stream's first rows.
void Decoder::score(std::int64_t positions, const OnLogits& on_logits) {
  const auto keep = head_activations();
  const std::int64_t width = buffers_.logits.columns();
  std::vector<float> values(static_cast<std::size_t>(kRows * width));
  for (std::int64_t position = 0; position < positions;) {
    const std::int64_t first = std::min(position, buffers_.stream.dim(0) - kRows);  // not beyond the buffer
    head_.logits(context_, keep, buffers_.stream.row_range(first, kRows), buffers_.logits);
    context_.backend.copy_to_host(values.data(), buffers_.logits);
    for (; position < std::min(positions, first + kRows); ++position) {
      on_logits(position, std::span(values).subspan(static_cast<std::size_t>((position - first) * width),
                                                    static_cast<std::size_t>(config().vocab_size)));
    }
  }
}

std::vector<std::span<const float>> Decoder::logits(std::span<const int> texts) {
  const auto keep = head_activations();
  const Tensor rows = first_rows(buffers_.stream, kRows);
  const auto width = static_cast<std::size_t>(buffers_.logits.columns());
  logits_.resize((texts.size() + kRows - 1) / kRows * kRows * width);
  std::vector<std::span<const float>> found;
  for (std::size_t first = 0; first < texts.size(); first += kRows) {
    for (std::size_t i = first; i < std::min<std::size_t>(first + kRows, texts.size()); ++i) {
      context_.backend.convert(rows.row_range(static_cast<std::int64_t>(i - first), 1),
                               buffers_.last.row_range(texts[i], 1));
      found.push_back(std::span(logits_).subspan(i * width, static_cast<std::size_t>(config().vocab_size)));
    }
    head_.logits(context_, keep, rows, buffers_.logits);
    context_.backend.copy_to_host(logits_.data() + first * width, buffers_.logits);
  }
  return found;
}

}  // namespace shoal
