#include <fmt/format.h>

#include <string>
#include <string_view>

#include "core/trace.h"
#include "model/layers.h"

namespace shoal {
namespace {

// The bias of a row-parallel product, which one rank adds.
Tensor bias_once(const TensorGroup& group, const Tensor& bias) { return group.rank() == 0 ? bias : Tensor{}; }

// The kept activations, with the others in the workspace. GELU's output borrows d_hidden, which is free until
// the gradient of the same activations goes there.
BlockActivations with_workspace(const BlockActivations& kept, const Workspace& work,
                                const TensorGroup& group) {
  BlockActivations all = kept;
  if (!all.norm_1) all.norm_1 = all.norm_2 = group.mine(work.norm);
  if (!all.activated) all.activated = work.d_hidden;
  return all;
}

// Folds all dimensions of x before the last ones into `rows`.
Tensor folded(const Tensor& x, std::int64_t rows) { return x.reshaped({rows, x.count() / rows}); }

std::string purpose_of(const TensorGroup& group, std::string_view what, const UnitSpec& unit) {
  return group.size() > 1 ? fmt::format("{} of {}", what, unit.name) : "";
}

// The sum of the ranks' branches, as a stream.
Tensor summed(const TensorGroup& group, const Tensor& branch, const Shape& stream, std::string_view purpose) {
  group.reduce(branch, purpose).wait();
  return group.mine(branch).reshaped(stream);
}

}  // namespace

void Block::make_activations(const LayerContext& context, const BatchAddress& address,
                             const BlockActivations& keep, const Workspace& work, const UnitView& w,
                             const Adapter::Pass& adapters, const Tensor& x, const BranchSum& before,
                             const Attention& attention) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto& p = parameters_;
  const auto purpose = purpose_of(group, "activations", *w.spec);
  const std::int64_t rows = work.branch.rows();
  // All ranks' rows of a norm.
  const auto gathered = [&](const Tensor& norm) {
    group.gather(work.norm, norm, purpose).wait();
    return group.sequence() ? work.norm : norm;
  };

  if (before.branch) {
    ops.residual_layernorm_forward({.out = x,
                                    .y = keep.norm_1,
                                    .mean = keep.mean_1,
                                    .rstd = keep.rstd_1,
                                    .residual = before.residual,
                                    .branch = before.branch,
                                    .dropout = before.dropout,
                                    .gamma = w[p.ln_1.weight],
                                    .beta = w[p.ln_1.bias]});
  } else {
    ops.layernorm_forward(keep.norm_1, keep.mean_1, keep.rstd_1, x, w[p.ln_1.weight], w[p.ln_1.bias]);
  }
  const Tensor norm_1 = gathered(keep.norm_1), qkv = folded(keep.qkv, rows);
  ops.linear_forward(qkv, norm_1, w[p.attn_c_attn.weight], w[p.attn_c_attn.bias]);
  adapter_.forward(adapters, Linear::attn_c_attn, qkv, norm_1);
  if (attention) {
    attention(keep.attention, keep.qkv);
  } else {
    ops.attention_forward(keep.attention, keep.lse, keep.qkv,
                          local_heads(context.config, group.tensor_rank()).begin,
                          context.dropout(address, site(0)));
  }
  const Tensor heads = folded(keep.attention, rows);
  ops.linear_forward(work.branch, heads, w[p.attn_c_proj.weight], bias_once(group, w[p.attn_c_proj.bias]));
  adapter_.forward(adapters, Linear::attn_c_proj, work.branch, heads);
  ops.residual_layernorm_forward({.out = keep.middle,
                                  .y = keep.norm_2,
                                  .mean = keep.mean_2,
                                  .rstd = keep.rstd_2,
                                  .residual = x,
                                  .branch = summed(group, work.branch, x.shape, purpose),
                                  .dropout = context.dropout(address, site(1), x),
                                  .gamma = w[p.ln_2.weight],
                                  .beta = w[p.ln_2.bias]});
  const Tensor norm_2 = gathered(keep.norm_2);
  if (!adapter_.on(Linear::mlp_c_fc)) {
    return ops.linear_gelu_forward(keep.activated, keep.hidden, norm_2, w[p.mlp_c_fc.weight],
                                   w[p.mlp_c_fc.bias], context.config.gelu);
  }
  ops.linear_forward(keep.hidden, norm_2, w[p.mlp_c_fc.weight], w[p.mlp_c_fc.bias]);
  adapter_.forward(adapters, Linear::mlp_c_fc, keep.hidden, norm_2);
  ops.gelu_forward(keep.activated, keep.hidden, context.config.gelu);
}

BranchSum Block::forward(const LayerContext& context, const BatchAddress& address,
                         const BlockActivations& kept, const Workspace& work, const Tensor& x,
                         const BranchSum& before, const Attention& attention) const {
  const auto& group = context.tensor;
  const auto keep = with_workspace(kept, work, group);
  const auto w = context.store.weights(unit());
  const trace::Span span("forward", w.spec->name);
  const auto adapters = adapter_.begin_forward(context, address, work.adapter, keep.qkv.dim(1));
  make_activations(context, address, keep, work, w, adapters, x, before, attention);
  context.backend.linear_forward(work.branch, keep.activated, w[parameters_.mlp_c_proj.weight],
                                 bias_once(group, w[parameters_.mlp_c_proj.bias]));
  adapter_.forward(adapters, Linear::mlp_c_proj, work.branch, keep.activated);
  adapter_.end_forward(adapters);
  const Tensor branch = summed(group, work.branch, x.shape, purpose_of(group, "activations", *w.spec));
  context.store.release(unit());
  return {keep.middle, branch, context.dropout(address, site(2), x)};
}

void Block::recompute(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                      const Workspace& work, const Tensor& x) const {
  const auto w = context.store.weights(unit());
  const trace::Span span("forward", w.spec->name);
  const auto adapters = adapter_.begin_forward(context, address, work.adapter, kept.qkv.dim(1));
  make_activations(context, address, with_workspace(kept, work, context.tensor), work, w, adapters, x, {},
                   {});
  adapter_.end_forward(adapters);
  context.store.release(unit());
}

BranchGradient Block::branch_gradient(const LayerContext& context, const BatchAddress& address,
                                      const Workspace& work, const Tensor& stream, int which) const {
  const auto dropout = context.dropout(address, site(which), stream);
  const bool plain = !dropout.active() && !context.tensor.sequence();
  const auto& bias = (which == 1 ? parameters_.attn_c_proj : parameters_.mlp_c_proj).bias;
  BranchGradient made;
  if (plain && bias.shape.rank() > 0 && context.store.units()[static_cast<std::size_t>(unit())].trained &&
      context.backend.norm_backward_sums()) {
    made.sums = work.sums;
  }
  // The stream's own serves where nothing has to be masked, converted or gathered.
  if (plain && context.compute == stream.dtype) return made;
  made.out = context.tensor.mine(work.branch).reshaped(stream.shape);
  made.dropout = dropout;
  return made;
}

void Block::backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& kept,
                     const Workspace& work, const Tensor& x, const Tensor& d_stream,
                     const BranchGradient& entered, const BranchGradient& next) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto& p = parameters_;
  const auto keep = with_workspace(kept, work, group);
  const auto w = context.store.weights(unit());
  const auto g = context.store.gradients(unit(), products_);
  const auto adapters = adapter_.begin_backward(context, address, work.adapter, keep.qkv.dim(1));
  const trace::Span span("backward", w.spec->name);
  const auto purpose = purpose_of(group, "gradients of activations", *w.spec);
  const std::int64_t rows = work.branch.rows();
  // The gradient that enters a branch: all ranks' rows.
  const auto enter_branch = [&](const BranchGradient& branch) {
    if (!branch.out) return folded(d_stream, rows);
    group.gather(work.branch, group.mine(work.branch), purpose).wait();
    return work.branch;
  };
  // Gathers all ranks' rows of a norm again, while products go on.
  const auto gather_norm = [&](const Tensor& norm) { return group.gather(work.norm, norm, purpose); };
  const auto whole = [&](const Tensor& norm) { return group.sequence() ? work.norm : norm; };
  const auto add_weight_gradient = [&](const AffineParameters& layer, const Tensor& dy, const Tensor& input,
                                       bool with_bias = true) {
    if (!g) return;
    ops.linear_backward_weight(g[layer.weight], with_bias ? g[layer.bias] : Tensor{}, dy, input, g.unset);
  };
  // The same for a branch's last product, whose bias may have its gradient already.
  const auto add_branch_gradient = [&](const AffineParameters& layer, const Tensor& sums, const Tensor& dy,
                                       const Tensor& input) {
    if (g && sums) ops.add(g[layer.bias], sums);
    add_weight_gradient(layer, dy, input, !sums);
  };

  const auto d_ln_1 = work.affine(g, p.ln_1), d_ln_2 = work.affine(g, p.ln_2);
  const auto mlp = entry(context, address, work, d_stream);
  if (mlp.out && !entered.out) ops.residual_backward(mlp.out, d_stream, mlp.dropout);
  const Tensor d_mlp = enter_branch(mlp);
  if (!kept.norm_2) {
    ops.layernorm_forward(keep.norm_2, keep.mean_2, keep.rstd_2, keep.middle, w[p.ln_2.weight],
                          w[p.ln_2.bias]);
  }
  auto norm_2 = gather_norm(keep.norm_2);
  if (!kept.activated) ops.gelu_forward(keep.activated, keep.hidden, context.config.gelu);
  add_branch_gradient(p.mlp_c_proj, entered.sums, d_mlp, keep.activated);
  bool summed_hidden = false;  // into the bias's gradient
  if (const Tensor more = adapter_.backward(adapters, Linear::mlp_c_proj, d_mlp, keep.activated)) {
    ops.linear_backward_input(work.d_hidden, d_mlp, w[p.mlp_c_proj.weight]);
    ops.add(work.d_hidden, more);
    ops.gelu_backward(work.d_hidden, work.d_hidden, keep.hidden, context.config.gelu);
  } else {
    summed_hidden = g && ops.gelu_backward_sums();
    ops.linear_gelu_backward(work.d_hidden, d_mlp, w[p.mlp_c_proj.weight], keep.hidden, context.config.gelu,
                             summed_hidden ? g[p.mlp_c_fc.bias] : Tensor{});
  }
  // The gradient of a layer's input, with its adapter's part.
  const auto backward_input = [&](Linear layer, const AffineParameters& of, const Tensor& dx,
                                  const Tensor& dy, Request& input_comes, const Tensor& input) {
    ops.linear_backward_input(dx, dy, w[of.weight]);
    if (adapter_.on(layer)) input_comes.wait();
    if (const Tensor more = adapter_.backward(adapters, layer, dy, input)) ops.add(dx, more);
  };
  backward_input(Linear::mlp_c_fc, p.mlp_c_fc, work.d_norm, work.d_hidden, norm_2, whole(keep.norm_2));
  auto sum = group.reduce(work.d_norm, purpose);
  norm_2.wait();
  add_weight_gradient(p.mlp_c_fc, work.d_hidden, whole(keep.norm_2), !summed_hidden);
  sum.wait();
  const auto attention = branch_gradient(context, address, work, d_stream, 1);
  ops.layernorm_residual_backward({.norm = {.dx = d_stream,
                                            .dgamma = d_ln_2.weight,
                                            .dbeta = d_ln_2.bias,
                                            .dy = group.mine(work.d_norm),
                                            .x = keep.middle,
                                            .gamma = w[p.ln_2.weight],
                                            .mean = keep.mean_2,
                                            .rstd = keep.rstd_2},
                                   .dbranch = attention.out,
                                   .dropout = attention.dropout,
                                   .sums = attention.sums});

  const Tensor d_attention = enter_branch(attention);
  if (!kept.norm_1) {
    ops.layernorm_forward(keep.norm_1, keep.mean_1, keep.rstd_1, x, w[p.ln_1.weight], w[p.ln_1.bias]);
  }
  auto norm_1 = gather_norm(keep.norm_1);
  const Tensor heads = folded(keep.attention, rows);
  add_branch_gradient(p.attn_c_proj, attention.sums, d_attention, heads);
  const Tensor d_heads = {work.d_norm.data, work.d_norm.dtype, heads.shape};
  Request here;
  backward_input(Linear::attn_c_proj, p.attn_c_proj, d_heads, d_attention, here, heads);
  ops.attention_backward({.dqkv = work.d_qkv,
                          .dout = d_heads,
                          .out = keep.attention,
                          .lse = keep.lse,
                          .qkv = keep.qkv,
                          .first_head = local_heads(context.config, group.tensor_rank()).begin,
                          .dropout = context.dropout(address, site(0))});
  const Tensor d_qkv = folded(work.d_qkv, rows);
  backward_input(Linear::attn_c_attn, p.attn_c_attn, work.d_norm, d_qkv, norm_1, whole(keep.norm_1));
  sum = group.reduce(work.d_norm, purpose);
  norm_1.wait();
  add_weight_gradient(p.attn_c_attn, d_qkv, whole(keep.norm_1));
  sum.wait();
  ops.layernorm_residual_backward({.norm = {.dx = d_stream,
                                            .dgamma = d_ln_1.weight,
                                            .dbeta = d_ln_1.bias,
                                            .dy = group.mine(work.d_norm),
                                            .x = x,
                                            .gamma = w[p.ln_1.weight],
                                            .mean = keep.mean_1,
                                            .rstd = keep.rstd_1},
                                   .dbranch = next.out,
                                   .dropout = next.dropout,
                                   .sums = next.sums});
  context.store.release(unit());
  adapter_.end_backward(adapters);
  context.store.gradients_ready(unit());
}

}  // namespace shoal
