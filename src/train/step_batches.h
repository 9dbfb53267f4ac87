// A step's micro-batches on the backend.
#pragma once

#include <span>
#include <vector>

#include "model/arena.h"
#include "parallel/pipeline.h"

namespace shoal {

class StepBatches {
 public:
  StepBatches(Backend& backend, const BatchShape& shape, int micro_batches)
      : arena_(backend, measure(shape, micro_batches)), batches_(static_cast<std::size_t>(micro_batches)) {
    take(arena_, shape);
  }

  // tokens and targets i32 [B, T] of each, to be filled in.
  std::span<TokenBatch> all() { return batches_; }
  TokenBatch& operator[](int micro_batch) { return batches_[static_cast<std::size_t>(micro_batch)]; }
  // f64 [micro_batches]
  const Tensor& losses() const { return losses_; }

 private:
  static std::size_t measure(const BatchShape& shape, int micro_batches) {
    Arena measure;
    for (int i = 0; i < 2 * micro_batches; ++i) measure.take(DType::i32, {shape.batch, shape.positions});
    measure.take(DType::f64, {micro_batches});
    return measure.used();
  }
  void take(Arena& arena, const BatchShape& shape) {
    for (auto& batch : batches_) {
      batch.tokens = arena.take(DType::i32, {shape.batch, shape.positions});
      batch.targets = arena.take(DType::i32, {shape.batch, shape.positions});
    }
    losses_ = arena.take(DType::f64, {static_cast<std::int64_t>(batches_.size())});
  }

  Arena arena_;
  std::vector<TokenBatch> batches_;
  Tensor losses_;
};

}  // namespace shoal
