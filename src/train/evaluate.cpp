#include "train/evaluate.h"

#include <algorithm>

#include "data/batch_sampler.h"

namespace shoal {

EvaluationProgress show_on(Progress& progress) {
  return [&progress](std::int64_t done, std::int64_t total) {
    progress.set_total(static_cast<double>(total));
    progress.update(static_cast<double>(done));
  };
}

Evaluator::Evaluator(Backend& backend, Gpt& model, std::uint64_t seed)
    : backend_(backend),
      model_(model),
      seed_(seed),
      arena_(backend, static_cast<std::size_t>(model.options().batch.rows()) * 8 + 256) {
  const auto& shape = model.options().batch;
  const auto rows = static_cast<std::size_t>(shape.rows());
  tokens_ = arena_.take(DType::i32, {shape.batch, shape.positions});
  targets_ = arena_.take(DType::i32, {shape.batch, shape.positions});
  loss_ = arena_.take(DType::f64, {1});
  host_tokens_.resize(rows);
  host_targets_.resize(rows);
  host_predictions_.resize(rows);
}

void Evaluator::add_batch(Evaluation& result) {
  backend_.copy_from_host(tokens_, host_tokens_.data());
  backend_.copy_from_host(targets_, host_targets_.data());
  backend_.zero(loss_);
  model_.evaluate({.tokens = tokens_, .targets = targets_, .address = {.training = false}}, loss_);
  double loss = 0;
  backend_.copy_to_host(&loss, loss_);
  backend_.copy_to_host(host_predictions_.data(), model_.predictions());
  result.loss_sum += loss;
  for (std::size_t i = 0; i < host_targets_.size(); ++i) {
    if (host_targets_[i] < 0) continue;
    ++result.tokens;
    result.correct += host_targets_[i] == host_predictions_[i];
  }
}

Evaluation Evaluator::random(const TokenFile& split, std::int64_t batches,
                             const EvaluationProgress& progress) {
  const auto& shape = model_.options().batch;
  const BatchSampler sampler(split, shape.positions, Sampling::random, seed_, Stream::evaluation);
  Evaluation result;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    sampler.fill(batch, 0, shape.batch, shape.batch, host_tokens_.data(), host_targets_.data());
    add_batch(result);
    if (progress) progress(batch + 1, batches);
  }
  return result;
}

Evaluation Evaluator::whole(const TokenFile& split, std::int64_t batches,
                            const EvaluationProgress& progress) {
  const auto& shape = model_.options().batch;
  const SequentialSampler sampler(split, shape.positions);
  std::int64_t total = (sampler.windows() + shape.batch - 1) / shape.batch;
  if (batches > 0) total = std::min(total, batches);
  Evaluation result;
  for (std::int64_t batch = 0; batch < total; ++batch) {
    // Sequences past the last window hold nothing that counts.
    std::fill(host_tokens_.begin(), host_tokens_.end(), 0);
    std::fill(host_targets_.begin(), host_targets_.end(), -1);
    for (std::int64_t b = 0; b < shape.batch && batch * shape.batch + b < sampler.windows(); ++b) {
      sampler.fill(batch * shape.batch + b, host_tokens_.data() + b * shape.positions,
                   host_targets_.data() + b * shape.positions);
    }
    add_batch(result);
    if (progress) progress(batch + 1, total);
  }
  return result;
}

}  // namespace shoal
