#include <algorithm>

#include "core/trace.h"
#include "model/layers.h"

namespace shoal {
namespace {

// Rows of logits made at a time.
std::int64_t chunk_rows(std::int64_t rows, std::int64_t classes, std::int64_t elements) {
  const std::int64_t most = std::max<std::int64_t>(64, elements / classes);
  const std::int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

// The statistics of this rank's classes become those of all: three numbers per token are exchanged, and with
// `choice` the most likely class.
struct RowStatistics {
  Tensor own_maximum, maximum, exp_sum, target_logit, argmax;

  void merge(Backend& ops, const TensorGroup& group, bool choice) const {
    constexpr std::string_view kPurpose = "statistics of the loss";
    ops.convert(own_maximum, maximum);
    group.all_reduce(maximum, ReduceOp::max, kPurpose).wait();
    ops.cross_entropy_rescale(exp_sum, argmax, own_maximum, maximum);
    auto sums = group.all_reduce(exp_sum, ReduceOp::sum, kPurpose);
    group.all_reduce(target_logit, ReduceOp::sum, kPurpose).wait();
    if (choice) group.all_reduce(argmax, ReduceOp::min, kPurpose).wait();
    sums.wait();
  }
};

// Calls f(first row, rows, logits, part) for chunk after chunk, with the logits made; part(x) are the chunk's
// numbers of x, which has one for every row.
template <typename F>
void for_chunks(const LayerContext& context, const Head::Activations& keep, const Tensor& norm,
                const Tensor& wte, std::int64_t rows, F&& f) {
  const std::int64_t most = keep.logits.rows();
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t n = std::min(most, rows - first);
    const auto part = [&](const Tensor& x) {
      return Tensor{x.as<std::byte>() + static_cast<std::size_t>(first) * size_of(x.dtype), x.dtype, {n}};
    };
    const Tensor logits = keep.logits.row_range(0, n);
    context.backend.linear_forward(logits, norm.row_range(first, n), wte, {});
    f(first, n, logits, part);
  }
}

// Of all classes, whichever rank has them.
template <typename Part>
void find_loss(const LayerContext& context, const Head::Activations& keep, const Tensor& logits,
               const Tensor& targets, bool choice, const Part& part) {
  auto& ops = context.backend;
  const auto classes = local_classes(context.config, context.tensor.place());
  const Tensor maximum = part(keep.maximum), exp_sum = part(keep.exp_sum),
               target_logit = part(keep.target_logit), argmax = part(keep.argmax);
  ops.cross_entropy_stats(maximum, exp_sum, target_logit, argmax, logits, part(targets), classes.begin,
                          classes.count());
  if (context.tensor.size() > 1) {
    RowStatistics{part(keep.own_maximum), maximum, exp_sum, target_logit, argmax}.merge(ops, context.tensor,
                                                                                        choice);
  }
  ops.cross_entropy_loss(part(keep.loss), maximum, exp_sum, target_logit, part(targets));
}

// The final norm of x, in whole rows.
Tensor final_norm(const LayerContext& context, const Head::Activations& keep, const Workspace& work,
                  const UnitView& w, const Tensor& x) {
  context.backend.layernorm_forward(keep.norm, keep.mean, keep.rstd, x, w["ln_f.weight"], w["ln_f.bias"]);
  if (!context.tensor.sequence()) return keep.norm;
  context.tensor.gather(work.norm, keep.norm, "activations of head").wait();
  return work.norm;
}

Tensor folded_loss(const Head::Activations& keep, const Tensor& targets) {
  return {keep.loss.data, DType::f32, {targets.count()}};
}

}  // namespace

Head::Activations Head::Activations::take(Arena& arena, const GptConfig& config, const BatchShape& shape,
                                          DType compute, const LogitsPlan& plan, const TensorPlace& place) {
  const std::int64_t r = shape.rows(), classes = padded_vocabulary(config, place),
                     chunk = chunk_rows(r, classes, plan.elements);
  const std::int64_t mine = place.sequence ? r / place.size : r;
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
  if (place.size > 1) keep.own_maximum = arena.take(DType::f32, {r});
  return keep;
}

void Head::evaluate(const LayerContext& context, const Activations& keep, const Workspace& work,
                    const Tensor& x, const Tensor& targets, const Tensor& loss) {
  const auto w = context.store.weights(unit(context.config));
  const auto embedding = context.store.weights(EmbeddingLayer::kUnit);
  const trace::Span span("forward", w.spec->name);
  const Tensor norm = final_norm(context, keep, work, w, x);
  for_chunks(context, keep, norm, embedding["wte.weight"], targets.count(),
             [&](std::int64_t, std::int64_t, const Tensor& logits, const auto& part) {
               find_loss(context, keep, logits, targets, true, part);
             });
  context.backend.sum(loss, folded_loss(keep, targets));
  context.store.release(EmbeddingLayer::kUnit);
  context.store.release(unit(context.config));
}

void Head::train(const LayerContext& context, const Activations& keep, const Workspace& work, const Tensor& x,
                 const Tensor& d_stream, const Tensor& targets, const Tensor& loss, float scale,
                 const BranchGradient& next) {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const int u = unit(context.config);
  const auto w = context.store.weights(u);
  const auto g = context.store.gradients(u);
  const auto embedding = context.store.weights(EmbeddingLayer::kUnit);
  const trace::Span span("backward", w.spec->name);
  const Tensor wte = embedding["wte.weight"];
  const Tensor d_wte = context.store.tied_gradient();
  const auto classes = local_classes(context.config, group.place());
  const Tensor norm = final_norm(context, keep, work, w, x);
  for_chunks(context, keep, norm, wte, targets.count(),
             [&](std::int64_t first, std::int64_t n, const Tensor& logits, const auto& part) {
               const Tensor d_logits = keep.d_logits.row_range(0, n);
               if (group.size() == 1) {
                 ops.cross_entropy_train(d_logits, part(keep.loss), part(keep.maximum), part(keep.exp_sum),
                                         part(keep.target_logit), part(keep.argmax), logits, part(targets),
                                         classes.count(), scale);
               } else {
                 find_loss(context, keep, logits, targets, false, part);
                 ops.cross_entropy_backward(d_logits, logits, part(keep.maximum), part(keep.exp_sum),
                                            part(targets), classes.begin, classes.count(), scale);
               }
               ops.linear_backward_input(work.d_norm.row_range(first, n), d_logits, wte);
               ops.linear_backward_weight(d_wte, {}, d_logits, norm.row_range(first, n));
             });
  ops.sum(loss, folded_loss(keep, targets));
  group.reduce(work.d_norm, "gradients of activations of head").wait();
  ops.layernorm_residual_backward(d_stream, true, next.out, next.dropout, g["ln_f.weight"], g["ln_f.bias"],
                                  group.mine(work.d_norm), x, w["ln_f.weight"], keep.mean, keep.rstd);
  context.store.release(EmbeddingLayer::kUnit);
  context.store.release(u);
  context.store.gradients_ready(u);
}

void Head::logits(const LayerContext& context, const Activations& keep, const Tensor& x,
                  const Tensor& logits) {
  const auto w = context.store.weights(unit(context.config));
  const auto embedding = context.store.weights(EmbeddingLayer::kUnit);
  context.backend.layernorm_forward(keep.norm.row_range(0, x.rows()), keep.mean, keep.rstd, x,
                                    w["ln_f.weight"], w["ln_f.bias"]);
  context.backend.linear_forward(logits, keep.norm.row_range(0, x.rows()), embedding["wte.weight"], {});
  context.store.release(EmbeddingLayer::kUnit);
  context.store.release(unit(context.config));
}

}  // namespace shoal
