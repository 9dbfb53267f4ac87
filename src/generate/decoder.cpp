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
  buffers.rows = arena.take(DType::i32, {3 * r});
  buffers.stream = arena.take(DType::f32, {r, c});
  buffers.mean = arena.take(DType::f32, {r});
  buffers.rstd = arena.take(DType::f32, {r});
  buffers.norm = arena.take(compute, {r, c});
  buffers.qkv = arena.take(compute, {r, 3 * width});
  buffers.attention = arena.take(compute, {r, width});
  buffers.branch = arena.take(compute, {r, c});
  buffers.hidden = arena.take(compute, {r, hidden});
  buffers.activated = arena.take(compute, {r, hidden});
  const std::int64_t widest = widest_vocabulary(config, tensor.size);
  const Tensor logits = arena.take(DType::f32, {kFewRows, widest});
  buffers.logits = {logits.data, DType::f32, {kFewRows, padded_vocabulary(config, tensor)}};
  if (tensor.size > 1) buffers.gathered = arena.take(DType::f32, {tensor.size, kFewRows, widest});
  buffers.adapter = AdapterWork::take(arena, config, r, compute, tensor, false);
  return buffers;
}

std::size_t Decoder::memory_bytes(const GptConfig& config, DType compute, int texts,
                                  const TensorRank& tensor) {
  Arena arena;
  Buffers::take(arena, config, compute, texts, tensor);
  return arena.used();
}

Decoder::Decoder(Backend& backend, UnitStore& store, const GptConfig& config, DType compute, int texts,
                 const TensorGroup& tensor, bool capture)
    : context_{backend, store, config, compute, tensor},
      arena_(backend, memory_bytes(config, compute, texts, tensor.tensor_rank())),
      buffers_(Buffers::take(arena_, config, compute, texts, tensor.tensor_rank())),
      embedding_(store.units()),
      head_(store.units(), config),
      lengths_(static_cast<std::size_t>(texts)),
      logits_(backend, static_cast<std::size_t>((texts + kFewRows) * row_width()) * sizeof(float)),
      computed_(backend.make_event()),
      copied_(backend.make_event()) {
  for (int layer = 0; layer < config.n_layer; ++layer) blocks_.emplace_back(store.units(), config, layer);
  for (int rows = 1; rows <= kFewRows; ++rows) replays_.emplace_back(backend, capture && tensor.size() == 1);
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
        read_prompt(numbers[0], ids);
        break;
      case Call::extend: {
        std::vector<Token> tokens;
        for (std::size_t i = 0; i < count; ++i) tokens.push_back({numbers[2 * i], numbers[2 * i + 1]});
        read_tokens(tokens);
        break;
      }
      case Call::score:
        compute_logits(numbers[0], call.count);
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
  read_prompt(text, ids);
  if (!on_logits) return;
  for (std::int64_t first = 0; first < n; first += kFewRows) {
    const auto rows = static_cast<std::int32_t>(std::min(kFewRows, n - first));
    shared({.kind = Call::score, .count = rows, .numbers = {static_cast<std::int32_t>(first)}});
    compute_logits(first, rows);
    const auto texts = static_cast<int>(std::ssize(lengths_));
    std::vector<Wanted> wanted;
    for (int i = 0; i < rows; ++i) wanted.push_back({i, logits_of(texts + i)});
    fetch_logits(rows, wanted);
    for (int i = 0; i < rows; ++i) on_logits(first + i, logits(texts + i));
  }
}

// `tokens` are rank 0's: the other ranks get them here.
void Decoder::read_prompt(int text, std::span<std::int32_t> tokens) {
  const auto n = std::ssize(tokens);
  context_.tensor.broadcast({tokens.data(), DType::i32, {n}}, "the tokens of a prompt").wait();
  std::vector<std::int32_t> rows(tokens.begin(), tokens.end());
  rows.resize(2 * tokens.size(), text);
  for (std::int32_t position = 0; position < n; ++position) rows.push_back(position);
  context_.backend.copy_from_host(first_elements(buffers_.rows, 3 * n), rows.data());
  read(n, true);
  compute_logits(n - 1, 1);
  lengths_[static_cast<std::size_t>(text)] = n;
  fetch_logits(1, std::array{Wanted{0, logits_of(text)}});
}

void Decoder::extend(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    const auto some = tokens.first(std::min<std::size_t>(kFewRows, tokens.size()));
    Call call{.kind = Call::extend, .count = static_cast<std::int32_t>(some.size())};
    for (std::size_t i = 0; i < some.size(); ++i) {
      call.numbers[2 * i] = some[i].text;
      call.numbers[2 * i + 1] = some[i].id;
    }
    shared(call);
    read_tokens(some);
    tokens = tokens.subspan(some.size());
  }
}

void Decoder::read_tokens(std::span<const Token> tokens) {
  const std::size_t n = tokens.size();
  std::array<std::int32_t, 3 * kFewRows> rows;
  for (std::size_t i = 0; i < n; ++i) {
    const auto [text, id] = tokens[i];
    auto& length = lengths_[static_cast<std::size_t>(text)];
    if (length == config().block_size) fail("a text of {} tokens fills its block", length);
    rows[i] = id;
    rows[n + i] = text;
    rows[2 * n + i] = static_cast<std::int32_t>(length++);
  }
  const auto count = static_cast<std::int64_t>(n);
  context_.backend.copy_from_host(first_elements(buffers_.rows, 3 * count), rows.data());
  replays_[n - 1]([&] {
    read(count, false);
    compute_logits(0, count);
  });
  std::vector<Wanted> last;  // of each text
  for (std::size_t i = 0; i < n; ++i) {
    if (i + 1 < n && tokens[i + 1].text == tokens[i].text) continue;
    last.push_back({static_cast<std::int64_t>(i), logits_of(tokens[i].text)});
  }
  fetch_logits(count, last);
}

void Decoder::copy(int to, int from) {
  shared({.kind = Call::copy, .numbers = {to, from}});
  copy_text(to, from);
  std::copy_n(logits_of(from), row_width(), logits_of(to));
}

void Decoder::copy_text(int to, int from) {
  const auto length = lengths_[static_cast<std::size_t>(from)];
  lengths_[static_cast<std::size_t>(to)] = length;
  const auto read = [&](const Tensor& cache, int text) {
    return cache.reshaped({cache.dim(0), cache.dim(1), cache.dim(2) * cache.dim(3)})
        .row_range(std::int64_t{text} * config().block_size, length);
  };
  for (const auto& [keys, values] : buffers_.cache) {
    context_.backend.convert(read(keys, to), read(keys, from));
    context_.backend.convert(read(values, to), read(values, from));
  }
}

// The first n rows, whose tokens, texts and positions are in buffers_.rows.
void Decoder::read(std::int64_t n, bool prompt) {
  const auto part = [&](std::int64_t i) {
    return Tensor{buffers_.rows.as<std::int32_t>() + i * n, DType::i32, {n}};
  };
  const CacheRows rows{.texts = part(1), .positions = part(2), .prompt = prompt};
  const Tensor stream = first_rows(buffers_.stream, n).reshaped({1, n, config().n_embd});
  embedding_.forward(context_, {.training = false, .positions = rows.positions}, {}, stream,
                     part(0).reshaped({1, n}));
  run_blocks(stream, rows);
}

// Runs the layers of training. Every block attends to the cache, and overwrites the stream and the
// activations of the block before it.
void Decoder::run_blocks(const Tensor& stream, const CacheRows& rows) {
  const std::int64_t n = rows.texts.count(), d = config().head_size(),
                     h = local_heads(config(), context_.tensor.tensor_rank()).count();
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

  BranchSum sum;
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const auto attend = [&](const Tensor& out, const Tensor& qkv) {
      const auto& [keys, values] = buffers_.cache[layer];
      context_.backend.attention_cached(out.reshaped({n, h, d}), keys, values, qkv.reshaped({n, 3, h, d}),
                                        rows);
    };
    sum = blocks_[layer].forward(context_, {.training = false}, keep, work, stream, sum, attend);
  }
  context_.backend.residual_forward(stream, sum.residual, sum.branch, sum.dropout);
}

// The logits behind some rows of the stream, kFewRows at most, on all ranks.
void Decoder::compute_logits(std::int64_t first, std::int64_t n) {
  Head::Activations keep;
  keep.mean = first_elements(buffers_.mean, n);
  keep.rstd = first_elements(buffers_.rstd, n);
  keep.norm = first_rows(buffers_.norm, n);
  const Tensor mine = first_rows(buffers_.logits, n);
  head_.logits(context_, keep, buffers_.stream.row_range(first, n), mine);
  const auto& group = context_.tensor;
  if (group.size() == 1) return;
  const std::int64_t part = n * buffers_.gathered.columns();
  group
      .all_gather({buffers_.gathered.data, DType::f32, {group.size() * part}},
                  {mine.data, DType::f32, {part}}, "logits")
      .wait();
}

// Copies some of the n rows of logits that were computed last to the host. Rank 0 does so, and puts the
// ranks' parts together.
void Decoder::fetch_logits(std::int64_t n, std::span<const Wanted> wanted) {
  using Stream = Device::Stream;
  const auto& group = context_.tensor;
  if (group.rank() != 0) return;
  auto& backend = context_.backend;
  backend.record(*computed_, Stream::kernels);
  backend.wait(Stream::copy_out, *computed_);
  for (const auto& [row, to] : wanted) {
    if (group.size() == 1) {
      backend.copy_out(to, buffers_.logits.row_range(row, 1));
      continue;
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      const TensorRank of{.rank = rank, .size = group.size()};
      const auto classes = local_classes(config(), of);
      const std::int64_t at = rank * n * buffers_.gathered.columns() + row * padded_vocabulary(config(), of);
      backend.copy_out(to + classes.begin,
                       {buffers_.gathered.as<float>() + at, DType::f32, {classes.count()}});
    }
  }
  backend.record(*copied_, Stream::copy_out);
  backend.synchronize(*copied_);
}

// The length of a row of logits on the host: its padding goes where the ranks' parts are put together.
std::int64_t Decoder::row_width() const {
  return context_.tensor.size() > 1 ? config().vocab_size : buffers_.logits.columns();
}

float* Decoder::logits_of(int text) const {
  return reinterpret_cast<float*>(logits_.bytes().data()) + text * row_width();
}

std::span<const float> Decoder::logits(int text) const {
  return {logits_of(text), static_cast<std::size_t>(config().vocab_size)};
}

}  // namespace shoal
