#include <fmt/format.h>

#include "core/trace.h"
#include "model/layers.h"

namespace shoal {
namespace {

// Of the parameters of a row-parallel product, the bias is added by one rank.
Tensor bias_once(const TensorGroup& group, const Tensor& bias) { return group.rank() == 0 ? bias : Tensor{}; }

}  // namespace

void Block::forward(const LayerContext& context, const BatchAddress& address, const BlockActivations& keep,
                    const Workspace& work, const Tensor& x, const Tensor& out) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
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

  ops.layernorm_forward(keep.norm_1, keep.mean_1, keep.rstd_1, x, w["ln_1.weight"], w["ln_1.bias"]);
  ops.linear_forward(columns(keep.qkv), gathered(keep.norm_1), w["c_attn.weight"], w["c_attn.bias"]);
  ops.attention_forward(keep.attention, keep.lse, keep.qkv, local_heads(context.config, group.place()).begin,
                        context.dropout(address, site(0)));
  ops.linear_forward(work.branch, columns(keep.attention), w["attn.c_proj.weight"],
                     bias_once(group, w["attn.c_proj.bias"]));
  ops.residual_forward(keep.middle, x, summed(work.branch), context.dropout(address, site(1), x));

  ops.layernorm_forward(keep.norm_2, keep.mean_2, keep.rstd_2, keep.middle, w["ln_2.weight"], w["ln_2.bias"]);
  ops.linear_gelu_forward(keep.activated, keep.hidden, gathered(keep.norm_2), w["c_fc.weight"],
                          w["c_fc.bias"], context.config.gelu);
  if (out) {
    ops.linear_forward(work.branch, keep.activated, w["mlp.c_proj.weight"],
                       bias_once(group, w["mlp.c_proj.bias"]));
    ops.residual_forward(out, keep.middle, summed(work.branch), context.dropout(address, site(2), x));
  }
  context.store.release(unit());
}

void Block::backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& keep,
                     const Workspace& work, const Tensor& x, const Tensor& d_stream) const {
  auto& ops = context.backend;
  const auto& group = context.tensor;
  const auto w = context.store.weights(unit());
  const auto g = context.store.gradients(unit());
  const trace::Span span("backward", w.spec->name);
  const auto purpose = group.size() > 1 ? fmt::format("gradients of activations of {}", w.spec->name) : "";
  const std::int64_t rows = work.branch.rows();
  const auto columns = [&](const Tensor& t) { return t.reshaped({rows, t.count() / rows}); };
  // The gradient that enters a branch, in whole rows: the stream's own where nothing has to be masked,
  // converted or gathered.
  const auto enter_branch = [&](int which) {
    const auto dropout = context.dropout(address, site(which), x);
    if (!dropout.active() && context.compute == DType::f32 && !group.sequence()) return columns(d_stream);
    const Tensor mine = group.mine(work.branch);
    ops.residual_backward(mine.reshaped(x.shape), d_stream, dropout);
    group.gather(work.branch, mine, purpose).wait();
    return work.branch;
  };
  // What backward needs of a norm's output in whole rows is gathered again, while products go on.
  const auto gather_norm = [&](const Tensor& norm) { return group.gather(work.norm, norm, purpose); };
  const auto whole = [&](const Tensor& norm) { return group.sequence() ? work.norm : norm; };

  const Tensor d_mlp = enter_branch(2);
  auto norm_2 = gather_norm(keep.norm_2);
  ops.linear_backward_weight(g["mlp.c_proj.weight"], g["mlp.c_proj.bias"], d_mlp, keep.activated);
  ops.linear_gelu_backward(work.d_hidden, d_mlp, w["mlp.c_proj.weight"], keep.hidden, context.config.gelu);
  ops.linear_backward_input(work.d_norm, work.d_hidden, w["c_fc.weight"]);
  auto sum = group.reduce(work.d_norm, purpose);
  norm_2.wait();
  ops.linear_backward_weight(g["c_fc.weight"], g["c_fc.bias"], work.d_hidden, whole(keep.norm_2));
  sum.wait();
  ops.layernorm_backward(d_stream, g["ln_2.weight"], g["ln_2.bias"], group.mine(work.d_norm), keep.middle,
                         w["ln_2.weight"], keep.mean_2, keep.rstd_2);

  const Tensor d_attention = enter_branch(1);
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
  ops.layernorm_backward(d_stream, g["ln_1.weight"], g["ln_1.bias"], group.mine(work.d_norm), x,
                         w["ln_1.weight"], keep.mean_1, keep.rstd_1);
  context.store.release(unit());
  context.store.gradients_ready(unit());
}

}  // namespace shoal
