#include "model/gpt.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace shoal {
namespace {

GptOptions with_units(GptOptions options, const GptConfig& config) {
  if (options.units == UnitRange{}) options.units = {0, config.n_layer + 2};
  return options;
}

// The number of blocks in a range that are recomputed: its first.
int recomputed_blocks(const GptOptions& options, int count) {
  if (options.recompute == Recompute::none) return 0;
  return options.recompute_blocks < 0 ? count : std::min(options.recompute_blocks, count);
}

}  // namespace

Gpt::Memory Gpt::carve(Arena& arena, Buffers& buffers, const GptConfig& config, const GptOptions& options,
                       const TensorRank& tensor, bool shared_workspace) {
  Memory memory;
  auto since = [&, before = std::size_t{0}]() mutable {
    return arena.used() - std::exchange(before, arena.used());
  };
  const int count = blocks_of(options.units, config).count();
  const int recomputed = recomputed_blocks(options, count);
  const auto recompute = recomputed > 0 ? options.recompute : Recompute::none;
  const bool head = options.units.end == config.n_layer + 2;
  const auto take_block = [&](Recompute kind) {
    return BlockActivations::take(arena, config, options.batch, options.compute, options.stream, tensor,
                                  kind);
  };
  buffers.sets.resize(static_cast<std::size_t>(options.activations));
  if (!options.backward || recompute == Recompute::block) buffers.shared = take_block(recompute);
  for (auto& set : buffers.sets) {
    if (options.backward) set.kept.reserve(static_cast<std::size_t>(count));
    for (int i = 0; options.backward && i < count; ++i) {
      const auto kind = i < recomputed ? recompute : Recompute::none;
      set.kept.push_back(kind == Recompute::block ? BlockActivations{} : take_block(kind));
    }
  }
  memory.blocks = since();

  const auto take_stream = [&] {
    return arena.take(options.stream, stream_shape(config, options.batch, tensor));
  };
  for (auto& set : buffers.sets) {
    // Without a backward pass a block's input and its output suffice, which take turns.
    const int streams = options.backward ? count - (head ? 0 : 1) : 1;
    for (int i = 0; i < streams; ++i) set.streams.push_back(take_stream());
  }
  for (int i = 0; i < options.inputs; ++i) buffers.inputs.push_back(take_stream());
  for (int i = 0; options.backward && i < options.gradients; ++i) buffers.gradients.push_back(take_stream());
  memory.streams = since();

  if (!shared_workspace) {
    buffers.work =
        Workspace::take(arena, config, options.batch, options.compute, options.stream, tensor,
                        options.workspace_recomputes ? options.recompute : recompute, options.backward);
  }
  memory.workspace = since();
  if (head) {
    buffers.head =
        Head::Activations::take(arena, config, options.batch, options.compute, options.logits, tensor);
  }
  memory.head = since();
  return memory;
}

Gpt::Memory Gpt::memory(const GptConfig& config, const GptOptions& options, const TensorRank& tensor,
                        bool shared_workspace) {
  Arena measure;
  Buffers buffers;
  return carve(measure, buffers, config, with_units(options, config), tensor, shared_workspace);
}

Gpt::Gpt(Backend& backend, UnitStore& store, const GptConfig& config, const GptOptions& options,
         const TensorGroup& tensor, const Workspace* shared)
    : context_{backend, store, config, options.compute, tensor},
      options_(with_units(options, config)),
      recomputed_(recomputed_blocks(options_, blocks_of(options_.units, config).count())),
      arena_(backend, memory(config, options, tensor.tensor_rank(), shared != nullptr).total()) {
  if (config.n_head <= 0 || config.n_embd % config.n_head != 0) {
    fail("a width of {} does not divide into {} heads", config.n_embd, config.n_head);
  }
  if (options.batch.positions > config.block_size) {
    fail("{} positions do not fit a block of {}", options.batch.positions, config.block_size);
  }
  if (options.stream != DType::f32 && options.stream != options.compute) {
    fail("a residual stream in {} needs products in it, not in {}", name_of(options.stream),
         name_of(options.compute));
  }
  if (tensor.sequence() && options.batch.positions != config.block_size) {
    fail("sequence parallelism addresses whole blocks of {} positions, not {}", config.block_size,
         options.batch.positions);
  }
  if (const auto limit = tensor_limit(config); tensor.size() > limit.ranks) {
    fail("{} tensor ranks cannot share {} {}", tensor.size(), limit.ranks, limit.part);
  }
  if (tensor.sequence() && options.batch.rows() % tensor.size() != 0) {
    fail("the {} tokens of a micro-batch do not divide over {} tensor ranks", options.batch.rows(),
         tensor.size());
  }
  const auto blocks = blocks_of(options_.units, config);
  if (first()) embedding_.emplace(store.units());
  for (int unit = blocks.begin; unit < blocks.end; ++unit) {
    blocks_.emplace_back(store.units(), config, unit - 1);
  }
  if (last()) head_.emplace(store.units(), config);
  carve(arena_, buffers_, config, options_, tensor.tensor_rank(), shared != nullptr);
  if (shared) buffers_.work = *shared;
}

const BlockActivations& Gpt::kept(const Slots& slots, int block) const {
  if (!options_.backward || shares_activations(block)) return buffers_.shared;
  return buffers_.sets[static_cast<std::size_t>(slots.activations)].kept[static_cast<std::size_t>(block)];
}

Tensor Gpt::stream(const Slots& slots, int block) const {
  const auto& streams = buffers_.sets[static_cast<std::size_t>(slots.activations)].streams;
  if (block == 0 || (!options_.backward && block % 2 == 0)) return input(slots.input);
  return streams[options_.backward ? static_cast<std::size_t>(block - 1) : 0];
}

void Gpt::forward(const TokenBatch& batch, const Slots& slots, const Tensor& out) {
  if (first()) {
    embedding_->forward(context_, batch.address, buffers_.work, input(slots.input), batch.tokens);
  }
  BranchSum sum;
  for (int i = 0; i < blocks(); ++i) {
    sum = blocks_[static_cast<std::size_t>(i)].forward(context_, batch.address, kept(slots, i), buffers_.work,
                                                       stream(slots, i), sum);
  }
  held_set_ = slots.activations;
  held_block_ = recomputed_ - 1;
  if (!sum.branch) return;
  context_.backend.residual_forward(last() ? stream(slots, blocks()) : out, sum.residual, sum.branch,
                                    sum.dropout);
}

// The shared activations may still be those of the last recomputed block's forward pass.
bool Gpt::has_to_recompute(const Slots& slots, int block) const {
  return shares_activations(block) && (held_set_ != slots.activations || held_block_ != block);
}

void Gpt::backward(const TokenBatch& batch, const Slots& slots, const Tensor& loss, float scale) {
  const Tensor d_stream = gradient(slots.gradient);
  // The unit behind a block makes the gradient that enters it, unless recomputing it needs the workspace.
  const auto entry = [&](int block) {
    if (block < 0) return BranchGradient{};
    auto made =
        blocks_[static_cast<std::size_t>(block)].entry(context_, batch.address, buffers_.work, d_stream);
    if (has_to_recompute(slots, block)) made.out = {};
    return made;
  };
  BranchGradient next;
  if (last()) {
    next = entry(blocks() - 1);
    head_->train(context_, buffers_.head, buffers_.work, stream(slots, blocks()), d_stream, batch.targets,
                 loss, scale, next);
  }
  for (int i = blocks(); i-- > 0;) {
    const auto& block = blocks_[static_cast<std::size_t>(i)];
    const auto& activations = kept(slots, i);
    const Tensor x = stream(slots, i);
    if (has_to_recompute(slots, i)) {
      block.recompute(context_, batch.address, activations, buffers_.work, x);
      held_set_ = slots.activations;
      held_block_ = i;
    }
    const BranchGradient entered = std::exchange(next, entry(i - 1));
    block.backward(context_, batch.address, activations, buffers_.work, x, d_stream, entered, next);
  }
  if (first()) embedding_->backward(context_, batch.address, buffers_.work, d_stream, batch.tokens);
}

void Gpt::train(const TokenBatch& batch, const Tensor& loss, float scale) {
  forward(batch, {}, {});
  backward(batch, {}, loss, scale);
}

void Gpt::evaluate_head(const TokenBatch& batch, const Slots& slots, const Tensor& loss) {
  head_->evaluate(context_, buffers_.head, buffers_.work, stream(slots, blocks()), batch.targets, loss);
}

void Gpt::evaluate(const TokenBatch& batch, const Tensor& loss) {
  TokenBatch quiet = batch;
  quiet.address.training = false;
  forward(quiet, {}, {});
  evaluate_head(quiet, {}, loss);
}

}  // namespace shoal
