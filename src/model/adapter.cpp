#include "model/adapter.h"

#include <algorithm>

namespace shoal {
namespace {

// Tensors share the beginning of a buffer for the largest of them.
Tensor first_of(const Tensor& buffer, std::int64_t rows, std::int64_t columns) {
  return {buffer.data, buffer.dtype, {rows, columns}};
}

struct Widths {
  std::int64_t in = 0, out = 0;
};

// The widest layers with adapters, of any tensor rank's share that this rank has.
Widths widest(const GptConfig& config, const TensorRank& tensor) {
  const std::int64_t c = config.n_embd, heads = local_heads(config, tensor).count() * config.head_size(),
                     hidden = local_hidden(config, tensor).count();
  const std::array<Widths, kLinears> all = {Widths{c, 3 * heads}, {heads, c}, {c, hidden}, {hidden, c}};
  Widths most;
  for (int i = 0; i < kLinears; ++i) {
    if (!config.lora.on(static_cast<Linear>(i))) continue;
    most.in = std::max(most.in, all[static_cast<std::size_t>(i)].in);
    most.out = std::max(most.out, all[static_cast<std::size_t>(i)].out);
  }
  return most;
}

}  // namespace

AdapterWork AdapterWork::take(Arena& arena, const GptConfig& config, std::int64_t rows, DType compute,
                              const TensorRank& tensor, bool training) {
  if (config.lora.rank == 0) return {};
  const auto [in, out] = widest(config, tensor);
  AdapterWork work{.sums = arena.take(DType::f32, {rows, config.lora.rank}),
                   .low = {},
                   .wide = arena.take(DType::f32, {rows, std::max(in, out)}),
                   .dropped = {}};
  work.low = compute == DType::f32 ? work.sums : arena.take(compute, {rows, config.lora.rank});
  if (training && config.lora.dropout > 0) work.dropped = arena.take(compute, {rows, in});
  return work;
}

Adapter::Adapter(const std::vector<UnitSpec>& units, const GptConfig& config, int layer) : layer_(layer) {
  if (config.lora.rank == 0) return;
  unit_ = config.n_layer + 2 + layer;
  const auto& unit = units.at(static_cast<std::size_t>(unit_));
  for (int i = 0; i < kLinears; ++i) {
    if (!config.lora.on(static_cast<Linear>(i))) continue;
    const std::string name(name_of(static_cast<Linear>(i)));
    const auto& a = unit.parameter(name + ".lora_A.weight");
    matrices_[static_cast<std::size_t>(i)] = {.a = a.slice(),
                                              .b = unit.parameter(name + ".lora_B.weight").slice(),
                                              .first_input = a.placement.range.begin};
  }
}

Adapter::Pass Adapter::begin_forward(const LayerContext& context, const BatchAddress& address,
                                     const AdapterWork& work, std::int64_t positions) const {
  Pass pass{context, address, work, positions};
  if (unit_ >= 0) pass.weights = context.store.weights(unit_);
  return pass;
}

Adapter::Pass Adapter::begin_backward(const LayerContext& context, const BatchAddress& address,
                                      const AdapterWork& work, std::int64_t positions) const {
  Pass pass = begin_forward(context, address, work, positions);
  if (unit_ >= 0) pass.gradients = context.store.gradients(unit_, {});
  return pass;
}

void Adapter::end_forward(const Pass& pass) const {
  if (unit_ >= 0) pass.context.store.release(unit_);
}

void Adapter::end_backward(const Pass& pass) const {
  end_forward(pass);
  if (unit_ >= 0) pass.context.store.gradients_ready(unit_);
}

// Sites behind those of the embedding and the blocks.
Dropout Adapter::dropout(const Pass& pass, Linear layer) const {
  const auto& config = pass.context.config;
  const int site = 1 + 3 * config.n_layer + kLinears * layer_ + static_cast<int>(layer);
  Dropout dropout = pass.context.dropout(pass.address, static_cast<std::uint32_t>(site));
  dropout.p = pass.address.training ? config.lora.dropout : 0;
  dropout.first_column = matrices(layer).first_input;
  return dropout;
}

// dropout(x), in the type of x.
Tensor Adapter::dropped(const Pass& pass, Linear layer, const Tensor& x) const {
  const auto dropout = this->dropout(pass, layer);
  if (!dropout.active()) return x;
  auto& ops = pass.context.backend;
  const Tensor out = first_of(pass.work.dropped, x.rows(), x.columns());
  Tensor from = x;
  if (x.dtype != DType::f32) {
    from = first_of(pass.work.wide, x.rows(), x.columns());
    ops.convert(from, x);
  }
  const Shape shape{x.rows() / pass.positions, pass.positions, x.columns()};
  ops.residual_backward(out.reshaped(shape), from.reshaped(shape), dropout);
  return out;
}

Tensor Adapter::scaled_low(const Pass& pass, const Tensor& sums) const {
  auto& ops = pass.context.backend;
  ops.scale(sums, sums, pass.context.config.lora.scale());
  const Tensor low = first_of(pass.work.low, sums.rows(), sums.columns());
  if (low.data != sums.data) ops.convert(low, sums);
  return low;
}

void Adapter::forward(const Pass& pass, Linear layer, const Tensor& y, const Tensor& x) const {
  if (!on(layer)) return;
  auto& ops = pass.context.backend;
  const Tensor a = pass.weights[matrices(layer).a], b = pass.weights[matrices(layer).b];
  const Tensor sums = first_of(pass.work.sums, x.rows(), a.rows()),
               wide = first_of(pass.work.wide, y.rows(), y.columns());
  ops.linear_forward(sums, dropped(pass, layer, x), a, {});
  ops.linear_forward(wide, scaled_low(pass, sums), b, {});
  ops.add(y, wide);
}

Tensor Adapter::backward(const Pass& pass, Linear layer, const Tensor& dy, const Tensor& x) const {
  if (!on(layer)) return {};
  auto& ops = pass.context.backend;
  const Tensor a = pass.weights[matrices(layer).a], b = pass.weights[matrices(layer).b];
  const Tensor sums = first_of(pass.work.sums, x.rows(), a.rows()),
               wide = first_of(pass.work.wide, x.rows(), x.columns());
  const Tensor input = dropped(pass, layer, x);
  ops.linear_forward(sums, input, a, {});
  ops.linear_backward_weight(pass.gradients[matrices(layer).b], {}, dy, scaled_low(pass, sums), false);
  ops.linear_backward_input(sums, dy, b);
  const Tensor d_low = scaled_low(pass, sums);
  ops.linear_backward_weight(pass.gradients[matrices(layer).a], {}, d_low, input, false);
  ops.linear_backward_input(wide, d_low, a);
  const auto dropout = this->dropout(pass, layer);
  if (!dropout.active()) return wide;
  const Shape shape{x.rows() / pass.positions, pass.positions, x.columns()};
  const Tensor masked = first_of(pass.work.dropped, x.rows(), x.columns());
  ops.residual_backward(masked.reshaped(shape), wide.reshaped(shape), dropout);
  return masked;
}

}  // namespace shoal
