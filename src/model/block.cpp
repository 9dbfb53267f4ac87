#include "model/layers.h"

namespace shoal {

void Block::forward(const LayerContext& context, const BatchAddress& address, const BlockActivations& keep,
                    const Workspace& work, const Tensor& x, const Tensor& out) const {
  auto& ops = context.backend;
  const auto w = context.store.weights(unit());

  ops.layernorm_forward(keep.norm_1, keep.mean_1, keep.rstd_1, x, w["ln_1.weight"], w["ln_1.bias"]);
  ops.linear_forward(keep.qkv.reshaped({keep.norm_1.rows(), 3 * x.columns()}), keep.norm_1,
                     w["c_attn.weight"], w["c_attn.bias"]);
  ops.attention_forward(keep.attention, keep.lse, keep.qkv, 0, context.dropout(address, site(0)));
  ops.linear_forward(work.branch, keep.attention.reshaped(work.branch.shape), w["attn.c_proj.weight"],
                     w["attn.c_proj.bias"]);
  ops.residual_forward(keep.middle, x, work.branch, context.dropout(address, site(1)));

  ops.layernorm_forward(keep.norm_2, keep.mean_2, keep.rstd_2, keep.middle, w["ln_2.weight"], w["ln_2.bias"]);
  ops.linear_forward(keep.hidden, keep.norm_2, w["c_fc.weight"], w["c_fc.bias"]);
  ops.gelu_forward(keep.activated, keep.hidden, context.config.gelu);
  if (out) {
    ops.linear_forward(work.branch, keep.activated, w["mlp.c_proj.weight"], w["mlp.c_proj.bias"]);
    ops.residual_forward(out, keep.middle, work.branch, context.dropout(address, site(2)));
  }
  context.store.release(unit());
}

void Block::backward(const LayerContext& context, const BatchAddress& address, const BlockActivations& keep,
                     const Workspace& work, const Tensor& x) const {
  auto& ops = context.backend;
  const auto w = context.store.weights(unit());
  const auto g = context.store.gradients(unit());
  // The gradient that enters a branch: the stream's own where nothing has to be masked or converted.
  const auto enter_branch = [&](int which) {
    const auto dropout = context.dropout(address, site(which));
    if (!dropout.active() && context.compute == DType::f32) return work.d_stream;
    ops.residual_backward(work.branch, work.d_stream, dropout);
    return work.branch;
  };

  const Tensor d_mlp = enter_branch(2);
  ops.linear_backward_weight(g["mlp.c_proj.weight"], g["mlp.c_proj.bias"], d_mlp, keep.activated);
  ops.linear_backward_input(work.d_hidden, d_mlp, w["mlp.c_proj.weight"]);
  ops.gelu_backward(work.d_hidden, work.d_hidden, keep.hidden, context.config.gelu);
  ops.linear_backward_weight(g["c_fc.weight"], g["c_fc.bias"], work.d_hidden, keep.norm_2);
  ops.linear_backward_input(work.d_norm, work.d_hidden, w["c_fc.weight"]);
  ops.layernorm_backward(work.d_stream, g["ln_2.weight"], g["ln_2.bias"], work.d_norm, keep.middle,
                         w["ln_2.weight"], keep.mean_2, keep.rstd_2);

  const Tensor d_attention = enter_branch(1);
  ops.linear_backward_weight(g["attn.c_proj.weight"], g["attn.c_proj.bias"], d_attention,
                             keep.attention.reshaped(d_attention.shape));
  ops.linear_backward_input(work.d_norm, d_attention, w["attn.c_proj.weight"]);
  ops.attention_backward(work.d_qkv, work.d_norm, keep.attention, keep.lse, keep.qkv, 0,
                         context.dropout(address, site(0)));
  const Tensor d_qkv = work.d_qkv.reshaped({keep.norm_1.rows(), 3 * x.columns()});
  ops.linear_backward_weight(g["c_attn.weight"], g["c_attn.bias"], d_qkv, keep.norm_1);
  ops.linear_backward_input(work.d_norm, d_qkv, w["c_attn.weight"]);
  ops.layernorm_backward(work.d_stream, g["ln_1.weight"], g["ln_1.bias"], work.d_norm, x, w["ln_1.weight"],
                         keep.mean_1, keep.rstd_1);
  context.store.release(unit());
  context.store.gradients_ready(unit());
}

}  // namespace shoal
