#include "model/layers.h"

#include "core/trace.h"

namespace shoal {

Dropout LayerContext::dropout(const BatchAddress& address, std::uint32_t site) const {
  return {.p = address.training ? config.dropout : 0.0,
          .seed = address.seed,
          .step = address.step,
          .site = site,
          .window = {.first_sample = address.first_sample, .sequence = config.block_size}};
}

Dropout LayerContext::dropout(const BatchAddress& address, std::uint32_t site, const Tensor& stream) const {
  Dropout dropout = this->dropout(address, site);
  // The rows of whole sequences follow each other, so a range of them is addressed as one long sequence.
  if (tensor.sequence()) dropout.window.first_position = tensor.rank() * stream.rows();
  return dropout;
}

Shape stream_shape(const GptConfig& config, const BatchShape& shape, const TensorRank& tensor) {
  if (!tensor.sequence) return {shape.batch, shape.positions, config.n_embd};
  return {1, shape.rows() / tensor.size, config.n_embd};
}

BlockActivations BlockActivations::take(Arena& arena, const GptConfig& config, const BatchShape& shape,
                                        DType compute, DType stream, const TensorRank& tensor,
                                        Recompute recompute) {
  const Shape rows = stream_shape(config, shape, tensor);
  const std::int64_t b = shape.batch, t = shape.positions, c = config.n_embd, r = rows[0] * rows[1];
  const std::int64_t h = local_heads(config, tensor).count(), d = config.head_size();
  const std::int64_t f = local_hidden(config, tensor).count();
  const bool light = recompute == Recompute::light, gelu = light || recompute == Recompute::gelu;
  const auto take_unless = [&](bool recomputed, const Shape& sizes) {
    return recomputed ? Tensor{} : arena.take(compute, sizes);
  };
  return {
      .mean_1 = arena.take(DType::f32, {r}),
      .rstd_1 = arena.take(DType::f32, {r}),
      .norm_1 = take_unless(light, {r, c}),
      .qkv = arena.take(compute, {b, t, 3, h, d}),
      .lse = arena.take(DType::f32, {b, h, t}),
      .attention = arena.take(compute, {b, t, h, d}),
      .middle = arena.take(stream, rows),
      .mean_2 = arena.take(DType::f32, {r}),
      .rstd_2 = arena.take(DType::f32, {r}),
      .norm_2 = take_unless(light, {r, c}),
      .hidden = arena.take(compute, {shape.rows(), f}),
      .activated = take_unless(gelu, {shape.rows(), f}),
  };
}

Workspace Workspace::take(Arena& arena, const GptConfig& config, const BatchShape& shape, DType compute,
                          DType stream, const TensorRank& tensor, Recompute recompute, bool training) {
  const std::int64_t b = shape.batch, t = shape.positions, r = shape.rows(), c = config.n_embd;
  Workspace work{
      .branch = arena.take(compute, {r, c}),
      .d_norm = arena.take(compute, {r, c}),
      .d_qkv = arena.take(compute, {b, t, 3, local_heads(config, tensor).count(), config.head_size()}),
      .d_hidden = arena.take(compute, {r, local_hidden(config, tensor).count()}),
      .norm = {},
      .stream = {},
      .d_affine = config.frozen.empty() ? Tensor{} : arena.take(DType::f32, {2, c}),
      .sums = arena.take(DType::f32, {c}),
      .adapter = AdapterWork::take(arena, config, r, compute, tensor, training),
  };
  if (tensor.sequence || recompute == Recompute::light) work.norm = arena.take(compute, {r, c});
  if (tensor.sequence) work.stream = arena.take(stream, {b, t, c});
  return work;
}

AffineGradients Workspace::affine(const UnitView& gradients, const AffineParameters& of) const {
  if (gradients) return {gradients[of.weight], gradients[of.bias]};
  const auto row = [&](int i) { return d_affine.row_range(i, 1).reshaped({d_affine.columns()}); };
  return {row(0), of.bias.shape.rank() > 0 ? row(1) : Tensor{}};
}

void EmbeddingLayer::forward(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                             const Tensor& out, const Tensor& tokens) const {
  const auto weights = context.store.weights(kUnit);
  const trace::Span span("forward", weights.spec->name);
  const auto& group = context.tensor;
  // The rank that has a token's class makes its row, which is zero on the others, so the sum is exact.
  const Tensor whole = group.sequence() ? work.stream : out;
  const auto classes = local_classes(context.config, group.tensor_rank());
  context.backend.embedding_forward(whole, tokens, weights[parameters_.wte].row_range(0, classes.count()),
                                    weights[parameters_.wpe], classes.begin, context.dropout(address, 0),
                                    address.positions);
  group.reduce(whole, "activations of embedding").wait();
  if (group.sequence()) context.backend.convert(out, group.mine(whole));
  context.store.release(kUnit);
}

void EmbeddingLayer::backward(const LayerContext& context, const BatchAddress& address, const Workspace& work,
                              const Tensor& d_stream, const Tensor& tokens) const {
  const auto grads = context.store.gradients(kUnit, {});
  if (!grads) return;
  const trace::Span span("backward", grads.spec->name);
  const auto& group = context.tensor;
  const Tensor whole = group.sequence() ? work.stream : d_stream;
  group.gather(whole, d_stream, "gradients of activations of embedding").wait();
  const auto classes = local_classes(context.config, group.tensor_rank());
  context.backend.embedding_backward(grads[parameters_.wte].row_range(0, classes.count()),
                                     grads[parameters_.wpe], whole, tokens, classes.begin,
                                     context.dropout(address, 0));
  context.store.gradients_ready(kUnit);
}

}  // namespace shoal
