#include "model/gpt.h"

#include "core/error.h"

namespace shoal {

struct Gpt::Buffers {
  std::vector<Tensor> streams;
  std::vector<BlockActivations> kept;
  Workspace work;
  Head::Activations head;
};

Gpt::Buffers Gpt::carve(Arena& arena, const GptConfig& config, const GptOptions& options) {
  Buffers buffers;
  const Shape stream{options.batch.batch, options.batch.positions, config.n_embd};
  const bool keep_all = options.backward && options.recompute == Recompute::none;
  const int sets = keep_all ? config.n_layer : 1;
  for (int i = 0; i < sets; ++i) {
    buffers.kept.push_back(BlockActivations::take(arena, config, options.batch, options.compute));
  }
  // Without a backward pass two streams suffice: a block's input and its output.
  const int streams = options.backward ? config.n_layer + 1 : 2;
  for (int i = 0; i < streams; ++i) buffers.streams.push_back(arena.take(DType::f32, stream));
  buffers.work = Workspace::take(arena, config, options.batch, options.compute);
  buffers.head = Head::Activations::take(arena, config, options.batch, options.compute);
  return buffers;
}

std::size_t Gpt::activation_bytes(const GptConfig& config, const GptOptions& options) {
  Arena measure;
  carve(measure, config, options);
  return measure.used();
}

Gpt::Gpt(Backend& backend, UnitStore& store, const GptConfig& config, const GptOptions& options)
    : context_{backend, store, config, options.compute},
      options_(options),
      arena_(backend, activation_bytes(config, options)) {
  if (config.n_head <= 0 || config.n_embd % config.n_head != 0) {
    fail("a width of {} does not divide into {} heads", config.n_embd, config.n_head);
  }
  if (options.batch.positions > config.block_size) {
    fail("{} positions do not fit a block of {}", options.batch.positions, config.block_size);
  }
  for (int layer = 0; layer < config.n_layer; ++layer) blocks_.emplace_back(layer);
  auto buffers = carve(arena_, config, options);
  streams_ = std::move(buffers.streams);
  kept_ = std::move(buffers.kept);
  work_ = buffers.work;
  head_ = buffers.head;
}

const BlockActivations& Gpt::kept(int layer) const {
  return kept_[kept_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
}

void Gpt::forward(const TokenBatch& batch) {
  const auto stream = [&](std::size_t i) { return streams_[i % streams_.size()]; };
  EmbeddingLayer::forward(context_, batch.address, stream(0), batch.tokens);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].forward(context_, batch.address, kept(static_cast<int>(i)), work_, stream(i), stream(i + 1));
  }
}

void Gpt::train(const TokenBatch& batch, const Tensor& loss, float scale) {
  forward(batch);
  Head::train(context_, head_, work_, streams_.back(), batch.targets, {loss}, scale);
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const auto& keep = kept(static_cast<int>(i));
    // The last block's activations are still those of its forward pass.
    if (options_.recompute == Recompute::block && i + 1 < blocks_.size()) {
      blocks_[i].forward(context_, batch.address, keep, work_, streams_[i], {});
    }
    blocks_[i].backward(context_, batch.address, keep, work_, streams_[i]);
  }
  EmbeddingLayer::backward(context_, batch.address, work_.d_stream, batch.tokens);
}

void Gpt::evaluate(const TokenBatch& batch, const Tensor& loss) {
  TokenBatch quiet = batch;
  quiet.address.training = false;
  forward(quiet);
  Head::evaluate(context_, head_, streams_[blocks_.size() % streams_.size()], batch.targets, {loss});
}

}  // namespace shoal
