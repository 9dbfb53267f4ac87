// A step's micro-batches in the backend's memory: tokens, targets, and the losses that come out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/interrupt.h"
#include "data/batch_loader.h"
#include "model/arena.h"
#include "parallel/data/shard_plan.h"
#include "parallel/pipeline/pipeline.h"

namespace shoal {

class StepBatches {
 public:
  // Micro-batches are assigned to `ranks` round-robin: pass p here is number p * ranks + first.
  StepBatches(Backend& backend, const BatchShape& shape, int passes, int ranks = 1, int first = 0)
      : backend_(backend),
        ranks_(ranks),
        first_(first),
        arena_(backend, measure(shape, passes, ranks)),
        batches_(static_cast<std::size_t>(passes)) {
    take(arena_, shape);
  }

  void begin_step(std::uint64_t seed, std::int64_t step) {
    for (auto& batch : batches_) {
      batch.address = {
          .seed = seed, .step = step_.as<std::uint32_t>(), .first_sample = batch.address.first_sample};
    }
    const auto number = static_cast<std::uint32_t>(step);
    backend_.copy_from_host(step_, &number);
  }
  void fill(int pass, const MicroBatch& from) {
    auto& batch = batches_[static_cast<std::size_t>(pass)];
    backend_.copy_from_host(batch.tokens, from.tokens.data());
    backend_.copy_from_host(batch.targets, from.targets.data());
    batch.address.first_sample = from.first_sample;
  }
  std::span<TokenBatch> all() { return batches_; }

  // f64 [passes, ranks]: of all micro-batches of the step, in their order.
  const Tensor& losses() const { return losses_; }
  // The first of each row is that of a micro-batch here.
  Tensor losses_here() const { return {losses_.as<double>() + first_, DType::f64, losses_.shape}; }
  // f64 [kSignals], behind the losses: what is added up with them.
  const Tensor& signals() const { return signals_; }
  // f64 [passes * ranks + kSignals]
  Tensor losses_and_signals() const {
    return {losses_.data, DType::f64, {losses_.count() + signals_.count()}};
  }

 private:
  static std::size_t measure(const BatchShape& shape, int passes, int ranks) {
    Arena measure;
    for (int i = 0; i < 2 * passes; ++i) measure.take(DType::i32, {shape.batch, shape.positions});
    measure.take(DType::i32, {1});
    measure.take(DType::f64, {std::int64_t{passes} * ranks + InterruptGuard::kSignals});
    return measure.used();
  }
  void take(Arena& arena, const BatchShape& shape) {
    for (auto& batch : batches_) {
      batch.tokens = arena.take(DType::i32, {shape.batch, shape.positions});
      batch.targets = arena.take(DType::i32, {shape.batch, shape.positions});
    }
    step_ = arena.take(DType::i32, {1});
    const std::int64_t passes = std::ssize(batches_), count = passes * ranks_;
    const Tensor sums = arena.take(DType::f64, {count + InterruptGuard::kSignals});
    losses_ = part_of(sums, 0, count).reshaped({passes, ranks_});
    signals_ = part_of(sums, count, InterruptGuard::kSignals);
  }

  Backend& backend_;
  int ranks_, first_;
  Arena arena_;
  std::vector<TokenBatch> batches_;
  Tensor step_, losses_, signals_;
};

}  // namespace shoal
