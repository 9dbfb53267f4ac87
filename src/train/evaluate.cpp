#include "train/evaluate.h"

#include <algorithm>
#include <numeric>

#include "data/batch_sampler.h"

namespace shoal {

EvaluationProgress show_on(Progress& progress) {
  return [&progress](std::int64_t done, std::int64_t total) {
    progress.set_total(static_cast<double>(total));
    progress.update(static_cast<double>(done));
  };
}

Evaluator::Evaluator(Backend& backend, Pipeline& model, Mesh& mesh, std::uint64_t seed)
    : backend_(backend),
      model_(model),
      mesh_(mesh),
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

// Of the host's batch; predictions go to the host.
double Evaluator::run_batch() {
  backend_.copy_from_host(tokens_, host_tokens_.data());
  backend_.copy_from_host(targets_, host_targets_.data());
  backend_.zero(loss_);
  model_.evaluate({.tokens = tokens_, .targets = targets_, .address = {.training = false}}, loss_);
  double loss = 0;
  backend_.copy_to_host(&loss, loss_);
  if (model_.has_loss()) backend_.copy_to_host(host_predictions_.data(), model_.predictions());
  return loss;
}

Evaluation Evaluator::over(std::int64_t batches, const FillBatch& fill, const EvaluationProgress& progress) {
  // Workers evaluate the same model, so its batches are dealt to all of them.
  const int size = mesh_.shape().workers * mesh_.data().size(),
            rank = mesh_.place().worker * mesh_.data().size() + mesh_.data().rank();
  const bool counts = model_.has_loss() && mesh_.place().tensor == 0;
  // One loss per batch, zero where it is another rank's, then tokens and correct ones: counts stay exact.
  std::vector<double> sums(static_cast<std::size_t>(batches) + 2);
  double &tokens = sums[sums.size() - 2], &correct = sums.back();
  // Sharded weights are gathered by all ranks at once, so every rank makes as many passes.
  for (std::int64_t first = 0; first < batches; first += size) {
    const auto batch = first + rank;
    std::fill(host_tokens_.begin(), host_tokens_.end(), 0);
    std::fill(host_targets_.begin(), host_targets_.end(), -1);
    if (batch < batches) fill(batch);
    const double loss = run_batch();
    if (batch < batches && counts) sums[static_cast<std::size_t>(batch)] = loss;
    for (std::size_t i = 0; counts && i < host_targets_.size(); ++i) {
      if (host_targets_[i] < 0) continue;
      ++tokens;
      correct += host_targets_[i] == host_predictions_[i];
    }
    if (progress) progress(std::min(first + size, batches), batches);
  }
  mesh_.world().set_purpose("losses of an evaluation");
  mesh_.world().all_reduce({sums.data(), DType::f64, {static_cast<std::int64_t>(sums.size())}}).wait();
  Evaluation result;
  result.loss_sum = std::accumulate(sums.begin(), sums.end() - 2, 0.0);
  result.tokens = static_cast<std::int64_t>(tokens);
  result.correct = static_cast<std::int64_t>(correct);
  return result;
}

Evaluation Evaluator::random(const TokenFile& split, std::int64_t batches,
                             const EvaluationProgress& progress) {
  const auto& shape = model_.options().batch;
  const BatchSampler sampler(split, shape.positions, Sampling::random, seed_, Stream::evaluation);
  const auto fill = [&](std::int64_t batch) {
    sampler.fill(batch, 0, shape.batch, shape.batch, host_tokens_.data(), host_targets_.data());
  };
  return over(batches, fill, progress);
}

Evaluation Evaluator::whole(const TokenFile& split, std::int64_t batches,
                            const EvaluationProgress& progress) {
  const auto& shape = model_.options().batch;
  const SequentialSampler sampler(split, shape.positions);
  std::int64_t total = (sampler.windows() + shape.batch - 1) / shape.batch;
  if (batches > 0) total = std::min(total, batches);
  // Sequences past the last window hold nothing that counts.
  const auto fill = [&](std::int64_t batch) {
    for (std::int64_t b = 0; b < shape.batch && batch * shape.batch + b < sampler.windows(); ++b) {
      sampler.fill(batch * shape.batch + b, host_tokens_.data() + b * shape.positions,
                   host_targets_.data() + b * shape.positions);
    }
  };
  return over(total, fill, progress);
}

}  // namespace shoal
