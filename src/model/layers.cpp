#include "model/layers.h"

namespace shoal {

Dropout LayerContext::dropout(const BatchAddress& address, std::uint32_t site) const {
  return {
      .p = address.training ? config.dropout : 0.0,
      .seed = address.seed,
      .step = static_cast<std::uint32_t>(address.step),
      .site = site,
      .window = {.first_sample = address.first_sample, .first_position = 0, .sequence = config.block_size}};
}

BlockActivations BlockActivations::take(Arena& arena, const GptConfig& config, const BatchShape& shape,
                                        DType compute) {
  const std::int64_t b = shape.batch, t = shape.positions, r = shape.rows(), c = config.n_embd;
  const std::int64_t h = config.n_head, d = config.head_size();
  return {
      .mean_1 = arena.take(DType::f32, {r}),
      .rstd_1 = arena.take(DType::f32, {r}),
      .norm_1 = arena.take(compute, {r, c}),
      .qkv = arena.take(compute, {b, t, 3, h, d}),
      .lse = arena.take(DType::f32, {b, h, t}),
      .attention = arena.take(compute, {b, t, h, d}),
      .middle = arena.take(DType::f32, {b, t, c}),
      .mean_2 = arena.take(DType::f32, {r}),
      .rstd_2 = arena.take(DType::f32, {r}),
      .norm_2 = arena.take(compute, {r, c}),
      .hidden = arena.take(compute, {r, 4 * c}),
      .activated = arena.take(compute, {r, 4 * c}),
  };
}

Workspace Workspace::take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute) {
  const std::int64_t b = shape.batch, t = shape.positions, r = shape.rows(), c = config.n_embd;
  return {
      .branch = arena.take(compute, {b, t, c}),
      .d_norm = arena.take(compute, {r, c}),
      .d_qkv = arena.take(compute, {b, t, 3, config.n_head, config.head_size()}),
      .d_hidden = arena.take(compute, {r, 4 * c}),
      .d_stream = arena.take(DType::f32, {b, t, c}),
  };
}

void EmbeddingLayer::forward(const LayerContext& context, const BatchAddress& address, const Tensor& out,
                             const Tensor& tokens) {
  const auto weights = context.store.weights(kUnit);
  context.backend.embedding_forward(out, tokens, weights["wte.weight"], weights["wpe.weight"], 0,
                                    context.dropout(address, 0));
  context.store.release(kUnit);
}

void EmbeddingLayer::backward(const LayerContext& context, const BatchAddress& address, const Tensor& dout,
                              const Tensor& tokens) {
  const auto grads = context.store.gradients(kUnit);
  context.backend.embedding_backward(grads["wte.weight"], grads["wpe.weight"], dout, tokens, 0,
                                     context.dropout(address, 0));
  context.store.gradients_ready(kUnit);
}

}  // namespace shoal
