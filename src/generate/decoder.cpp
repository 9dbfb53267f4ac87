#include "generate/decoder.h"

#include <algorithm>

#include "core/error.h"

namespace shoal {
namespace {

Tensor first_rows(const Tensor& buffer, std::int64_t rows) { return buffer.row_range(0, rows); }
Tensor first_elements(const Tensor& buffer, std::int64_t n) { return {buffer.data, buffer.dtype, {n}}; }

}  // namespace

Decoder::Buffers Decoder::Buffers::take(Arena& arena, const GptConfig& config, DType compute, int texts,
                                        const TensorRank& tensor) {
  const std::int64_t r = std::max<std::int64_t>(config.block_size, kFewRows), c = config.n_embd;
  const std::int64_t heads = local_heads(config, tensor).count(), width = heads * config.head_size();
  const std::int64_t hidden = local_hidden(config, tensor).count();
  Buffers buffers;
  for (int layer = 0; layer < config.n_layer; ++layer) {
    const Shape shape{texts, config.block_size, heads, config.head_size()};
    buffers.cache.push_back({.keys = arena.take(compute, shape), .values = arena.take(compute, shape)});
  }
  buffers.tokens = arena.take(DType::i32, {r});
  buffers.stream = arena.take(DType::f32, {r, c});
  buffers.mean = arena.take(DType::f32, {r});
  buffers.rstd = arena.take(DType::f32, {r});
  buffers.norm = arena.take(compute, {r, c});
  buffers.qkv = arena.take(compute, {r, 3 * width});
  buffers.attention = arena.take(compute, {r, width});
  buffers.branch = arena.take(compute, {r, c});
  buffers.hidden = arena.take(compute, {r, hidden});
  buffers.activated = arena.take(compute, {r, hidden});
  buffers.last = arena.take(DType::f32, {texts, c});
  const std::int64_t widest = widest_vocabulary(config, tensor.size);
  const Tensor logits = arena.take(DType::f32, {kFewRows, widest});
  buffers.logits = {logits.data, DType::f32, {kFewRows, padded_vocabulary(config, tensor)}};
  if (tensor.size > 1) buffers.gathered = arena.take(DType::f32, {tensor.size, kFewRows, widest});
  buffers.adapter = AdapterWork::take(arena, config, r, compute, tensor);
  return buffers;
}

std::size_t Decoder::memory_bytes(const GptConfig& config, DType compute, int texts,
                                  const TensorRank& tensor) {
  Arena arena;
  Buffers::take(arena, config, compute, texts, tensor);
  return arena.used();
}

Decoder::Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts,
                 const TensorGroup& tensor)
    : context_{backend, store, config, compute, tensor},
      arena_(backend, memory_bytes(config, compute, texts, tensor.tensor_rank())),
      buffers_(Buffers::take(arena_, config, compute, texts, tensor.tensor_rank())),
      embedding_(store.units()),
      head_(store.units(), config),
      lengths_(static_cast<std::size_t>(texts)) {
  for (int layer = 0; layer < config.n_layer; ++layer) blocks_.emplace_back(store.units(), config, layer);
  // Rows without a token take part in products, and nothing reads their results.
  for (const auto& buffer : {buffers_.stream, buffers_.attention}) backend.zero(buffer);
}

// Rank 0's call, on every rank.
Decoder::Call Decoder::shared(Call call) const {
  static_assert(sizeof(Call) % sizeof(std::int32_t) == 0);
  context_.tensor.broadcast({&call, DType::i32, {sizeof(Call) / sizeof(std::int32_t)}}, "the next tokens")
      .wait();
  return call;
}

void Decoder::dismiss() { shared({.kind = Call::dismiss}); }

void Decoder::follow() {
  std::vector<std::int32_t> ids;
  while (true) {
    const auto call = shared({});
    const auto numbers = std::span(call.numbers);
    const auto count = static_cast<std::size_t>(call.count);
    switch (call.kind) {
      case Call::prefill:
        ids.resize(count);
        read_all(numbers[0], ids);
        break;
      case Call::extend: {
        std::vector<Token> tokens;
        for (std::size_t i = 0; i < count; ++i) tokens.push_back({numbers[2 * i], numbers[2 * i + 1]});
        read_rows(tokens);
        break;
      }
      case Call::logits:
        score_texts(numbers.first(count), nullptr);
        break;
      case Call::score:
        score_rows(call.count, nullptr);
        break;
      case Call::copy:
        copy_text(numbers[0], numbers[1]);
        break;
      case Call::dismiss:
        return;
    }
  }
}

void Decoder::prefill(int text, std::span<const std::int32_t> tokens, const OnLogits& on_logits) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  if (n < 1 || n > config().block_size) fail("{} tokens do not fit a block of {}", n, config().block_size);
  shared({.kind = Call::prefill, .count = static_cast<std::int32_t>(n), .numbers = {text}});
  std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
  read_all(text, ids);
  if (!on_logits) return;
  const auto width = static_cast<std::size_t>(row_width());
  std::vector<float> values(kFewRows * width);
  for (std::int64_t position = 0; position < n;) {
    const std::int64_t first =
        std::min(position, buffers_.stream.dim(0) - kFewRows);  // not beyond the buffer
    shared({.kind = Call::score, .count = static_cast<std::int32_t>(first)});
    score_rows(first, values.data());
    for (; position < std::min(n, first + kFewRows); ++position) {
      on_logits(position, std::span(values).subspan(static_cast<std::size_t>(position - first) * width,
                                                    static_cast<std::size_t>(config().vocab_size)));
    }
  }
}

// `tokens` are rank 0's: the other ranks get them here.
void Decoder::read_all(int text, std::span<std::int32_t> tokens) {
  const auto n = std::ssize(tokens);
  context_.tensor.broadcast({tokens.data(), DType::i32, {n}}, "the tokens of a prompt").wait();
  context_.backend.copy_from_host(first_elements(buffers_.tokens, n), tokens.data());
  const Run all{.text = text, .position = 0, .row = 0, .rows = n};
  embed(all);
  run_blocks(n, {&all, 1});
  keep_last(all);
  lengths_[static_cast<std::size_t>(text)] = n;
}

void Decoder::extend(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    const auto live = tokens.first(std::min<std::size_t>(kFewRows, tokens.size()));
    Call call{.kind = Call::extend, .count = static_cast<std::int32_t>(live.size())};
    for (std::size_t i = 0; i < live.size(); ++i) {
      call.numbers[2 * i] = live[i].text;
      call.numbers[2 * i + 1] = live[i].id;
    }
    shared(call);
    read_rows(live);
    tokens = tokens.subspan(live.size());
  }
}

void Decoder::read_rows(std::span<const Token> tokens) {
  std::vector<std::int32_t> ids;
  std::vector<Run> runs;
  for (const auto& [text, id] : tokens) {
    auto& length = lengths_[static_cast<std::size_t>(text)];
    if (length == config().block_size) fail("a text of {} tokens fills its block", length);
    runs.push_back({.text = text, .position = length++, .row = std::ssize(runs), .rows = 1});
    ids.push_back(id);
  }
  context_.backend.copy_from_host(first_elements(buffers_.tokens, std::ssize(ids)), ids.data());
  for (const auto& run : runs) embed(run);
  run_blocks(rows_for(tokens.size()), runs);
  for (const auto& run : runs) keep_last(run);
}

std::int64_t Decoder::rows_for(std::size_t live) const {
  return context_.backend.few_rows_stand_alone() ? static_cast<std::int64_t>(live) : kFewRows;
}

void Decoder::copy(int to, int from) {
  shared({.kind = Call::copy, .numbers = {to, from}});
  copy_text(to, from);
}

void Decoder::copy_text(int to, int from) {
  const auto length = lengths_[static_cast<std::size_t>(from)];
  lengths_[static_cast<std::size_t>(to)] = length;
  const auto read = [&](const Tensor& cache, int text) {
    return cache.reshaped({cache.dim(0), cache.dim(1), cache.dim(2) * cache.dim(3)})
        .row_range(text * config().block_size, length);
  };
  for (const auto& [keys, values] : buffers_.cache) {
    context_.backend.convert(read(keys, to), read(keys, from));
    context_.backend.convert(read(values, to), read(values, from));
  }
  context_.backend.convert(buffers_.last.row_range(to, 1), buffers_.last.row_range(from, 1));
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
  const std::int64_t h = local_heads(config(), context_.tensor.tensor_rank()).count(),
                     d = config().head_size();
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

// The length of a row of logits on the host: its padding goes where the ranks' parts are put together.
std::int64_t Decoder::row_width() const {
  return context_.tensor.size() > 1 ? config().vocab_size : buffers_.logits.columns();
}

// The logits of some rows of the stream, kFewRows at most. `out` f32 [rows, row_width()] is for rank 0.
void Decoder::make_logits(const Tensor& rows, float* out) {
  const std::int64_t n = rows.rows();
  Head::Activations keep;
  keep.mean = first_elements(buffers_.mean, n);
  keep.rstd = first_elements(buffers_.rstd, n);
  keep.norm = first_rows(buffers_.norm, n);
  const Tensor mine = first_rows(buffers_.logits, n);
  head_.logits(context_, keep, rows, mine);
  const auto& group = context_.tensor;
  if (group.size() == 1) return context_.backend.copy_to_host(out, mine);
  const std::int64_t part = n * buffers_.gathered.columns();
  const Tensor all = {buffers_.gathered.data, DType::f32, {group.size(), part}};
  group.all_gather(all, {mine.data, DType::f32, {part}}, "logits").wait();
  if (!out) return;
  gathered_.resize(static_cast<std::size_t>(all.count()));
  context_.backend.copy_to_host(gathered_.data(), all);
  for (int rank = 0; rank < group.size(); ++rank) {
    const TensorRank of{.rank = rank, .size = group.size()};
    const auto classes = local_classes(config(), of);
    const float* from = gathered_.data() + rank * part;
    for (std::int64_t row = 0; row < n; ++row, from += padded_vocabulary(config(), of))
      std::copy_n(from, classes.count(), out + row * row_width() + classes.begin);
  }
}

void Decoder::score_rows(std::int64_t first, float* out) {
  make_logits(buffers_.stream.row_range(first, kFewRows), out);
}

void Decoder::score_texts(std::span<const int> texts, float* out) {
  const Tensor rows = first_rows(buffers_.stream, rows_for(texts.size()));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    context_.backend.convert(rows.row_range(static_cast<std::int64_t>(i), 1),
                             buffers_.last.row_range(texts[i], 1));
  }
  make_logits(rows, out);
}

std::vector<std::span<const float>> Decoder::logits(std::span<const int> texts) {
  const auto width = static_cast<std::size_t>(row_width());
  logits_.resize((texts.size() + kFewRows - 1) / kFewRows * kFewRows * width);
  std::vector<std::span<const float>> found;
  for (std::size_t first = 0; first < texts.size(); first += kFewRows) {
    const auto some = texts.subspan(first, std::min<std::size_t>(kFewRows, texts.size() - first));
    Call call{.kind = Call::logits, .count = static_cast<std::int32_t>(some.size())};
    std::ranges::copy(some, call.numbers.begin());
    shared(call);
    score_texts(some, logits_.data() + first * width);
    for (std::size_t i = first; i < first + some.size(); ++i)
      found.push_back(std::span(logits_).subspan(i * width, static_cast<std::size_t>(config().vocab_size)));
  }
  return found;
}

}  // namespace shoal
