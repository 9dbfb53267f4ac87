#include <algorithm>
#include <array>
#include <span>

#include "core/trace.h"
#include "model/layers.h"

namespace shoal {
namespace {

// The rows of a chunk of logits, which has about `elements` of them, or up to half of them where that makes
// all chunks equal: products of one size are tuned once.
std::int64_t chunk_rows(std::int64_t rows, std::int64_t classes, std::int64_t elements) {
  const std::int64_t most = std::max<std::int64_t>(64, elements / classes);
  const std::int64_t chunks = (rows + most - 1) / most;
  for (std::int64_t equal = chunks; equal < 2 * chunks; ++equal) {
    if (rows % equal == 0) return rows / equal;
  }
  return (rows + chunks - 1) / chunks;
}

// A chunk of rows: the arguments of its loss, with views into the buffers that have one number per row.
struct Chunk {
  std::int64_t first, rows;
  CrossEntropy loss;
  Tensor own_maximum;
};

// Calls f for chunk after chunk of norm . classes^T; the gradient is multiplied by `scale`.
template <typename F>
void for_chunks(const LayerContext& context, const Head::Activations& keep, const Tensor& norm,
                const Tensor& classes, const Tensor& targets, float scale, F&& f) {
  const auto mine = local_classes(context.config, context.tensor.tensor_rank());
  const std::int64_t rows = targets.count(), most = keep.logits.rows();
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t n = std::min(most, rows - first);
    const auto part = [&](const Tensor& x) {
      if (!x) return Tensor{};
      return Tensor{x.as<std::byte>() + static_cast<std::size_t>(first) * size_of(x.dtype), x.dtype, {n}};
    };
    const Chunk chunk{.first = first,
                      .rows = n,
                      .loss = {.logits = keep.logits.row_range(0, n),
                               .targets = part(targets),
                               .first_class = mine.begin,
                               .valid = mine.count(),
                               .maximum = part(keep.maximum),
                               .exp_sum = part(keep.exp_sum),
                               .target_logit = part(keep.target_logit),
                               .argmax = part(keep.argmax),
                               .losses = part(keep.loss),
                               .dlogits = keep.d_logits.row_range(0, n),
                               .scale = scale},
                      .own_maximum = part(keep.own_maximum)};
    context.backend.linear_forward(chunk.loss.logits, norm.row_range(first, n), classes, {});
    f(chunk);
  }
}

// Combines the statistics of the tensor ranks' classes: three numbers per token are exchanged, and with
// `choice` the most likely class.
void combine_statistics(Backend& ops, const TensorGroup& group, const Chunk& chunk, bool choice) {
  constexpr std::string_view kPurpose = "statistics of the loss";
  const auto& all = chunk.loss;
  ops.convert(chunk.own_maximum, all.maximum);
  group.all_reduce(all.maximum, ReduceOp::max, kPurpose).wait();
  ops.cross_entropy_rescale(all.exp_sum, all.argmax, chunk.own_maximum, all.maximum);
  auto sums = group.all_reduce(all.exp_sum, ReduceOp::sum, kPurpose);
  group.all_reduce(all.target_logit, ReduceOp::sum, kPurpose).wait();
  if (choice) group.all_reduce(all.argmax, ReduceOp::min, kPurpose).wait();
  sums.wait();
}

// The loss of a chunk over all classes, and with `choice` the most likely ones.
void find_loss(const LayerContext& context, const Chunk& chunk, bool choice) {
  auto& ops = context.backend;
  ops.cross_entropy_stats(chunk.loss);
  if (context.tensor.size() > 1) combine_statistics(ops, context.tensor, chunk, choice);
  ops.cross_entropy_loss(chunk.loss);
}

Tensor folded_loss(const Head::Activations& keep, const Tensor& targets) {
  return {keep.loss.data, DType::f32, {targets.count()}};
}

}  // namespace

Head::Activations Head::Activations::take(Arena& arena, const GptConfig& config, const BatchShape& shape,
                                          DType compute, const LogitsPlan& plan, const TensorRank& tensor) {
  // The ranks of a group combine the statistics of chunk after chunk, so these have the same rows on all.
  const std::int64_t r = shape.rows(), classes = padded_vocabulary(config, tensor),
                     chunk = chunk_rows(r, widest_vocabulary(config, tensor.size), plan.elements);
  const std::int64_t mine = tensor.sequence ? r / tensor.size : r;
  Activations keep{
      .mean = arena.take(DType::f32, {mine}),
      .rstd = arena.take(DType::f32, {mine}),
      .norm = arena.take(compute, {mine, config.n_embd}),
      .logits = arena.take(plan.type, {chunk, classes}),
      .d_logits = {},
      .maximum = arena.take(DType::f32, {r}),
      .exp_sum = arena.take(DType::f32, {r}),
      .target_logit = arena.take(DType::f32, {r}),
      .loss = arena.take(DType::f32, {r}),
      .argmax = arena.take(DType::i32, {r}),
      .own_maximum = {},
  };
  keep.d_logits = compute == plan.type ? keep.logits : arena.take(compute, {chunk, classes});
  if (tensor.size > 1) keep.own_maximum = arena.take(DType::f32, {r});
  return keep;
}

Head::Weights Head::weights(UnitStore& store) const {
  const auto own = store.weights(unit_);
  return {own, (tied_ ? store.weights(EmbeddingLayer::kUnit) : own)[classes_]};
}

void Head::release(UnitStore& store) const {
  if (tied_) store.release(EmbeddingLayer::kUnit);
  store.release(unit_);
}

// The final norm of x: all ranks' rows.
Tensor Head::final_norm(const LayerContext& context, const Activations& keep, const Workspace& work,
                        const UnitView& w, const Tensor& x) const {
  context.backend.layernorm_forward(keep.norm, keep.mean, keep.rstd, x, w[parameters_.ln_f.weight],
                                    w[parameters_.ln_f.bias]);
  if (!context.tensor.sequence()) return keep.norm;
  context.tensor.gather(work.norm, keep.norm, "activations of head").wait();
  return work.norm;
}

void Head::evaluate(const LayerContext& context, const Activations& keep, const Workspace& work,
                    const Tensor& x, const Tensor& targets, const Tensor& loss) const {
  const auto [w, classes] = weights(context.store);
  const trace::Span span("forward", w.spec->name);
  const Tensor norm = final_norm(context, keep, work, w, x);
  for_chunks(context, keep, norm, classes, targets, 1.0f,
             [&](const Chunk& chunk) { find_loss(context, chunk, true); });
  context.backend.sum(loss, folded_loss(keep, targets));
  release(context.store);
}

void Head::train(const LayerContext& context, const Activations& keep, const Workspace& work, const Tensor& x,
                 const Tensor& d_stream, const Tensor& targets, const Tensor& loss, float scale,
                 const BranchGradient& next) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto& ln_f = parameters_.ln_f;
  const Weights all = weights(context.store);
  const UnitView& w = all.own;
  const std::array products{classes_.range()};
  using Products = std::span<const ElementRange>;
  const auto g = context.store.gradients(unit_, tied_ ? Products() : Products(products));
  const trace::Span span("backward", w.spec->name);
  const UnitView matrix = tied_ ? context.store.tied_gradients(products) : g;
  const Tensor d_classes = matrix[classes_];
  const Tensor norm = final_norm(context, keep, work, w, x);
  for_chunks(context, keep, norm, all.classes, targets, scale, [&](const Chunk& chunk) {
    if (group.size() == 1) {
      ops.cross_entropy_train(chunk.loss);
    } else {
      find_loss(context, chunk, false);
      ops.cross_entropy_backward(chunk.loss);
    }
    ops.linear_backward_input(work.d_norm.row_range(chunk.first, chunk.rows), chunk.loss.dlogits,
                              all.classes);
    if (!d_classes) return;
    ops.linear_backward_weight(d_classes, {}, chunk.loss.dlogits, norm.row_range(chunk.first, chunk.rows),
                               matrix.unset && chunk.first == 0);
  });
  ops.sum(loss, folded_loss(keep, targets));
  group.reduce(work.d_norm, "gradients of activations of head").wait();
  const auto d_norm = work.affine(g, ln_f);
  ops.layernorm_residual_backward({.norm = {.dx = d_stream,
                                            .dgamma = d_norm.weight,
                                            .dbeta = d_norm.bias,
                                            .dy = group.mine(work.d_norm),
                                            .x = x,
                                            .gamma = w[ln_f.weight],
                                            .mean = keep.mean,
                                            .rstd = keep.rstd},
                                   .overwrite = true,
                                   .dbranch = next.out,
                                   .dropout = next.dropout,
                                   .sums = next.sums});
  release(context.store);
  context.store.gradients_ready(unit_);
}

void Head::logits(const LayerContext& context, const Activations& keep, const Tensor& x,
                  const Tensor& logits) const {
  const auto [w, classes] = weights(context.store);
  const Tensor norm = keep.norm.row_range(0, x.rows());
  context.backend.layernorm_forward(norm, keep.mean, keep.rstd, x, w[parameters_.ln_f.weight],
                                    w[parameters_.ln_f.bias]);
  context.backend.linear_forward(logits, norm, classes, {});
  release(context.store);
}

}  // namespace shoal
