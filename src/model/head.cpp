#include <algorithm>

#include "core/trace.h"
#include "model/layers.h"

namespace shoal {
namespace {

// The rows of a chunk of logits, which has about `elements` of them.
std::int64_t chunk_rows(std::int64_t rows, std::int64_t classes, std::int64_t elements) {
  const std::int64_t most = std::max<std::int64_t>(64, elements / classes);
  const std::int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

// A chunk of rows: its logits, and its part of the buffers that have one number per row.
struct Chunk {
  std::int64_t first, rows;
  Tensor logits, d_logits, targets;
  Tensor maximum, exp_sum, target_logit, loss, argmax, own_maximum;
};

// Calls f for chunk after chunk of norm . wte^T.
template <typename F>
void for_chunks(Backend& ops, const Head::Activations& keep, const Tensor& norm, const Tensor& wte,
                const Tensor& targets, F&& f) {
  const std::int64_t rows = targets.count(), most = keep.logits.rows();
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t n = std::min(most, rows - first);
    const auto part = [&](const Tensor& x) {
      if (!x) return Tensor{};
      return Tensor{x.as<std::byte>() + static_cast<std::size_t>(first) * size_of(x.dtype), x.dtype, {n}};
    };
    const Chunk chunk{.first = first,
                      .rows = n,
                      .logits = keep.logits.row_range(0, n),
                      .d_logits = keep.d_logits.row_range(0, n),
                      .targets = part(targets),
                      .maximum = part(keep.maximum),
                      .exp_sum = part(keep.exp_sum),
                      .target_logit = part(keep.target_logit),
                      .loss = part(keep.loss),
                      .argmax = part(keep.argmax),
                      .own_maximum = part(keep.own_maximum)};
    ops.linear_forward(chunk.logits, norm.row_range(first, n), wte, {});
    f(chunk);
  }
}

// Combines the statistics of the tensor ranks' classes: three numbers per token are exchanged, and with
// `choice` the most likely class.
void combine_statistics(Backend& ops, const TensorGroup& group, const Chunk& chunk, bool choice) {
  constexpr std::string_view kPurpose = "statistics of the loss";
  ops.convert(chunk.own_maximum, chunk.maximum);
  group.all_reduce(chunk.maximum, ReduceOp::max, kPurpose).wait();
  ops.cross_entropy_rescale(chunk.exp_sum, chunk.argmax, chunk.own_maximum, chunk.maximum);
  auto sums = group.all_reduce(chunk.exp_sum, ReduceOp::sum, kPurpose);
  group.all_reduce(chunk.target_logit, ReduceOp::sum, kPurpose).wait();
  if (choice) group.all_reduce(chunk.argmax, ReduceOp::min, kPurpose).wait();
  sums.wait();
}

// The loss of a chunk over all classes, and with `choice` the most likely ones.
void find_loss(const LayerContext& context, const Chunk& chunk, bool choice) {
  auto& ops = context.backend;
  const auto classes = local_classes(context.config, context.tensor.tensor_rank());
  ops.cross_entropy_stats(chunk.maximum, chunk.exp_sum, chunk.target_logit, chunk.argmax, chunk.logits,
                          chunk.targets, classes.begin, classes.count());
  if (context.tensor.size() > 1) combine_statistics(ops, context.tensor, chunk, choice);
  ops.cross_entropy_loss(chunk.loss, chunk.maximum, chunk.exp_sum, chunk.target_logit, chunk.targets);
}

Tensor folded_loss(const Head::Activations& keep, const Tensor& targets) {
  return {keep.loss.data, DType::f32, {targets.count()}};
}

}  // namespace

Head::Activations Head::Activations::take(Arena& arena, const GptConfig& config, const BatchShape& shape,
                                          DType compute, const LogitsPlan& plan, const TensorRank& tensor) {
  const std::int64_t r = shape.rows(), classes = padded_vocabulary(config, tensor),
                     chunk = chunk_rows(r, classes, plan.elements);
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
  const auto w = context.store.weights(unit_);
  const auto embedding = context.store.weights(EmbeddingLayer::kUnit);
  const trace::Span span("forward", w.spec->name);
  const Tensor norm = final_norm(context, keep, work, w, x);
  for_chunks(context.backend, keep, norm, embedding[embedding_.wte], targets,
             [&](const Chunk& chunk) { find_loss(context, chunk, true); });
  context.backend.sum(loss, folded_loss(keep, targets));
  context.store.release(EmbeddingLayer::kUnit);
  context.store.release(unit_);
}

void Head::train(const LayerContext& context, const Activations& keep, const Workspace& work, const Tensor& x,
                 const Tensor& d_stream, const Tensor& targets, const Tensor& loss, float scale,
                 const BranchGradient& next) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto& ln_f = parameters_.ln_f;
  const auto w = context.store.weights(unit_);
  const auto g = context.store.gradients(unit_);
  const auto embedding = context.store.weights(EmbeddingLayer::kUnit);
  const trace::Span span("backward", w.spec->name);
  const Tensor wte = embedding[embedding_.wte];
  const Tensor d_wte = context.store.tied_gradients()[embedding_.wte];
  const auto classes = local_classes(context.config, group.tensor_rank());
  const Tensor norm = final_norm(context, keep, work, w, x);
  for_chunks(ops, keep, norm, wte, targets, [&](const Chunk& chunk) {
    if (group.size() == 1) {
      ops.cross_entropy_train(chunk.d_logits, chunk.loss, chunk.maximum, chunk.exp_sum, chunk.target_logit,
                              chunk.argmax, chunk.logits, chunk.targets, classes.count(), scale);
    } else {
      find_loss(context, chunk, false);
      ops.cross_entropy_backward(chunk.d_logits, chunk.logits, chunk.maximum, chunk.exp_sum, chunk.targets,
                                 classes.begin, classes.count(), scale);
    }
    ops.linear_backward_input(work.d_norm.row_range(chunk.first, chunk.rows), chunk.d_logits, wte);
    ops.linear_backward_weight(d_wte, {}, chunk.d_logits, norm.row_range(chunk.first, chunk.rows));
  });
  ops.sum(loss, folded_loss(keep, targets));
  group.reduce(work.d_norm, "gradients of activations of head").wait();
  ops.layernorm_residual_backward(d_stream, true, next.out, next.dropout, g[ln_f.weight], g[ln_f.bias],
                                  group.mine(work.d_norm), x, w[ln_f.weight], keep.mean, keep.rstd);
  context.store.release(EmbeddingLayer::kUnit);
  context.store.release(unit_);
  context.store.gradients_ready(unit_);
}

void Head::logits(const LayerContext& context, const Activations& keep, const Tensor& x,
                  const Tensor& logits) const {
  const auto w = context.store.weights(unit_);
  const auto embedding = context.store.weights(EmbeddingLayer::kUnit);
  const Tensor norm = keep.norm.row_range(0, x.rows());
  context.backend.layernorm_forward(norm, keep.mean, keep.rstd, x, w[parameters_.ln_f.weight],
                                    w[parameters_.ln_f.bias]);
  context.backend.linear_forward(logits, norm, embedding[embedding_.wte], {});
  context.store.release(EmbeddingLayer::kUnit);
  context.store.release(unit_);
}

}  // namespace shoal
