#include <fmt/format.h>

#include "core/trace.h"
#include "model/layers.h"

namespace shoal {
namespace {

// Of the parameters of a row-parallel product, the bias is added by one rank.
Tensor bias_once(const TensorGroup& group, const Tensor& bias) { return group.rank() == 0 ? bias : Tensor{}; }

// With places in the workspace for what is not kept. GELU's is free until the gradient goes there that is
// made when it has been used.
BlockActivations with_places(const BlockActivations& keep, const Workspace& work, const TensorGroup& group) {
  BlockActivations all = keep;
  if (!all.norm_1) all.norm_1 = all.norm_2 = group.mine(work.norm);
  if (!all.activated) all.activated = work.d_hidden;
  return all;
}

}  // namespace

BranchSum Block::forward(const LayerContext& context, const BatchAddress& address,
                         const BlockActivations& kept, const Workspace& work, const Tensor& x,
                         const BranchSum& before, bool whole) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto keep = with_places(kept, work, group);
  const auto w = context.store.weights(unit());
  const trace::Span span("forward", w.spec->name);
  const auto purpose = group.size() > 1 ? fmt::format("activations of {}", w.spec->name) : "";
  const std::int64_t rows = work.branch.rows();
  const auto columns = [&](const Tensor& t) { return t.reshaped({rows, t.count() / rows}); };
  // Whole rows of a norm's output.
  const auto gathered = [&](const Tensor& norm) {
    group.gather(work.norm, norm, purpose).wait();
    return group.sequence() ? work.norm : norm;
  };
  // The sum of the ranks' branches, as a stream.
  const auto summed = [&](const Tensor& branch) {
    group.reduce(branch, purpose).wait();
    return group.mine(branch).reshaped(x.shape);
  };

  if (before.branch) {
    ops.residual_layernorm_forward(x, before.residual, before.branch, before.dropout, keep.norm_1,
                                   keep.mean_1, keep.rstd_1, w["ln_1.weight"], w["ln_1.bias"]);
  } else {
    ops.layernorm_forward(keep.norm_1, keep.mean_1, keep.rstd_1, x, w["ln_1.weight"], w["ln_1.bias"]);
  }
  ops.linear_forward(columns(keep.qkv), gathered(keep.norm_1), w["c_attn.weight"], w["c_attn.bias"]);
  ops.attention_forward(keep.attention, keep.lse, keep.qkv, local_heads(context.config, group.place()).begin,
                        context.dropout(address, site(0)));
  ops.linear_forward(work.branch, columns(keep.attention), w["attn.c_proj.weight"],
                     bias_once(group, w["attn.c_proj.bias"]));
  ops.residual_layernorm_forward(keep.middle, x, summed(work.branch), context.dropout(address, site(1), x),
                                 keep.norm_2, keep.mean_2, keep.rstd_2, w["ln_2.weight"], w["ln_2.bias"]);

  ops.linear_gelu_forward(keep.activated, keep.hidden, gathered(keep.norm_2), w["c_fc.weight"],
                          w["c_fc.bias"], context.config.gelu);
  BranchSum sum;
  if (whole) {
    ops.linear_forward(work.branch, keep.activated, w["mlp.c_proj.weight"],
                       bias_once(group, w["mlp.c_proj.bias"]));
    sum = {keep.middle, summed(work.branch), context.dropout(address, site(2), x)};
  }
  context.store.release(unit());
  return sum;
}

BranchGradient Block::branch_gradient(const LayerContext& context, const BatchAddress& address,
                                      const Workspace& work, const Tensor& stream, int which) const {
  const auto dropout = context.dropout(address, site(which), stream);
  // The stream's own serves where nothing has to be masked, converted or gathered.
  if (!dropout.active() && context.compute == DType::f32 && !context.tensor.sequence()) return {};
  return {context.tensor.mine(work.branch).reshaped(stream.shape), dropout};
}

void Block::backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                     const Workspace& work, const Tensor& x, const Tensor& d_stream, bool entered,
                     const BranchGradient& next) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto keep = with_places(kept, work, group);
  const auto w = context.store.weights(unit());
  const auto g = context.store.gradients(unit());
  const trace::Span span("backward", w.spec->name);
  const auto purpose = group.size() > 1 ? fmt::format("gradients of activations of {}", w.spec->name) : "";
  const std::int64_t rows = work.branch.rows();
  const auto columns = [&](const Tensor& t) { return t.reshaped({rows, t.count() / rows}); };
  // The gradient that enters a branch, in whole rows.
  const auto enter_branch = [&](const BranchGradient& branch) {
    if (!branch.out) return columns(d_stream);
    group.gather(work.branch, group.mine(work.branch), purpose).wait();
    return work.branch;
  };
  // What backward needs of a norm's output in whole rows is gathered again, while products go on.
  const auto gather_norm = [&](const Tensor& norm) { return group.gather(work.norm, norm, purpose); };
  const auto whole = [&](const Tensor& norm) { return group.sequence() ? work.norm : norm; };

  const auto mlp = entry(context, address, work, d_stream);
  if (mlp.out && !entered) ops.residual_backward(mlp.out, d_stream, mlp.dropout);
  const Tensor d_mlp = enter_branch(mlp);
  if (!kept.norm_2) {
    ops.layernorm_forward(keep.norm_2, keep.mean_2, keep.rstd_2, keep.middle, w["ln_2.weight"],
                          w["ln_2.bias"]);
  }
  auto norm_2 = gather_norm(keep.norm_2);
  if (!kept.activated) ops.gelu_forward(keep.activated, keep.hidden, context.config.gelu);
  ops.linear_backward_weight(g["mlp.c_proj.weight"], g["mlp.c_proj.bias"], d_mlp, keep.activated);
  ops.linear_gelu_backward(work.d_hidden, d_mlp, w["mlp.c_proj.weight"], keep.hidden, context.config.gelu);
  ops.linear_backward_input(work.d_norm, work.d_hidden, w["c_fc.weight"]);
  auto sum = group.reduce(work.d_norm, purpose);
  norm_2.wait();
  ops.linear_backward_weight(g["c_fc.weight"], g["c_fc.bias"], work.d_hidden, whole(keep.norm_2));
  sum.wait();
  const auto attention = branch_gradient(context, address, work, d_stream, 1);
  ops.layernorm_residual_backward(d_stream, false, attention.out, attention.dropout, g["ln_2.weight"],
                                  g["ln_2.bias"], group.mine(work.d_norm), keep.middle, w["ln_2.weight"],
                                  keep.mean_2, keep.rstd_2);

  const Tensor d_attention = enter_branch(attention);
  if (!kept.norm_1) {
    ops.layernorm_forward(keep.norm_1, keep.mean_1, keep.rstd_1, x, w["ln_1.weight"], w["ln_1.bias"]);
  }
  auto norm_1 = gather_norm(keep.norm_1);
  ops.linear_backward_weight(g["attn.c_proj.weight"], g["attn.c_proj.bias"], d_attention,
                             columns(keep.attention));
  const Tensor d_heads = {work.d_norm.data, work.d_norm.dtype, columns(keep.attention).shape};
  ops.linear_backward_input(d_heads, d_attention, w["attn.c_proj.weight"]);
  ops.attention_backward(work.d_qkv, d_heads, keep.attention, keep.lse, keep.qkv,
                         local_heads(context.config, group.place()).begin, context.dropout(address, site(0)));
  const Tensor d_qkv = columns(work.d_qkv);
  ops.linear_backward_input(work.d_norm, d_qkv, w["c_attn.weight"]);
  sum = group.reduce(work.d_norm, purpose);
  norm_1.wait();
  ops.linear_backward_weight(g["c_attn.weight"], g["c_attn.bias"], d_qkv, whole(keep.norm_1));
  sum.wait();
  ops.layernorm_residual_backward(d_stream, false, next.out, next.dropout, g["ln_1.weight"], g["ln_1.bias"],
                                  group.mine(work.d_norm), x, w["ln_1.weight"], keep.mean_1, keep.rstd_1);
  context.store.release(unit());
  context.store.gradients_ready(unit());
}

}  // namespace shoal
