#include "train/evaluate.h"

#include <algorithm>
#include <numeric>

#include "data/batch_sampler.h"

namespace shoal {

EvaluationProgress show_on(Progress& progress) {
  return [&progress](std::int64_t done, std::int64_t total) {
    progress.set_total(static_cast<double>(total));
    progress.update(static_cast<double>(done));
    return true;
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

// Evaluates the host's batch; the predictions are copied to the host.
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

// Sequences past the last hold nothing that counts.
void Evaluator::fill_batch(std::int64_t batch, std::int64_t sequences, const FillSequence& fill) {
  std::fill(host_tokens_.begin(), host_tokens_.end(), 0);
  std::fill(host_targets_.begin(), host_targets_.end(), -1);
  const auto& shape = model_.options().batch;
  const std::int64_t first = batch * shape.batch;
  for (std::int64_t i = 0; i < shape.batch && first + i < sequences; ++i) {
    fill(first + i, host_tokens_.data() + i * shape.positions, host_targets_.data() + i * shape.positions);
  }
}

template <typename Each>
bool Evaluator::for_batches(std::int64_t sequences, const FillSequence& fill,
                            const EvaluationProgress& progress, Each&& each) {
  // All workers evaluate the same model, so its micro-batches are assigned to the ranks of all of them.
  const int size = mesh_.shape().workers * mesh_.data().size(),
            rank = mesh_.coordinate().worker * mesh_.data().size() + mesh_.data().rank();
  const bool counts = model_.has_loss() && mesh_.coordinate().tensor == 0;
  const std::int64_t batch_size = model_.options().batch.batch;
  const std::int64_t batches = (sequences + batch_size - 1) / batch_size;
  // Sharded weights are gathered by all ranks at once, so every rank makes as many passes.
  bool left = false;
  for (std::int64_t first = 0; first < batches && !left; first += size) {
    const auto batch = first + rank;
    fill_batch(batch, sequences, fill);
    const double loss = run_batch();
    if (batch < batches && counts) each(batch, loss);
    if (!progress) continue;
    const std::int64_t done = std::min((first + size) * batch_size, sequences);
    left = !progress(done, sequences) && done < sequences;
  }
  return left;
}

Evaluation Evaluator::over(std::int64_t sequences, const FillSequence& fill,
                           const EvaluationProgress& progress) {
  const std::int64_t batch_size = model_.options().batch.batch;
  // One loss per micro-batch, zero for other ranks' ones, then tokens and correct ones: counts stay exact.
  std::vector<double> sums(static_cast<std::size_t>((sequences + batch_size - 1) / batch_size) + 2);
  double &tokens = sums[sums.size() - 2], &correct = sums.back();
  const bool left = for_batches(sequences, fill, progress, [&](std::int64_t batch, double loss) {
    sums[static_cast<std::size_t>(batch)] = loss;
    for (std::size_t i = 0; i < host_targets_.size(); ++i) {
      if (host_targets_[i] < 0) continue;
      ++tokens;
      correct += host_targets_[i] == host_predictions_[i];
    }
  });
  mesh_.world().set_purpose("losses of an evaluation");
  mesh_.world().all_reduce({sums.data(), DType::f64, {static_cast<std::int64_t>(sums.size())}}).wait();
  Evaluation result{.left = left};
  result.loss_sum = std::accumulate(sums.begin(), sums.end() - 2, 0.0);
  result.tokens = static_cast<std::int64_t>(tokens);
  result.correct = static_cast<std::int64_t>(correct);
  return result;
}

std::vector<SequenceScore> Evaluator::score(std::int64_t sequences, const FillSequence& fill,
                                            const EvaluationProgress& progress) {
  const auto& shape = model_.options().batch;
  std::vector<double> sums(
      static_cast<std::size_t>(2 * sequences));  // losses, then tokens that are not found
  std::vector<float> losses(static_cast<std::size_t>(shape.rows()));
  const bool left = for_batches(sequences, fill, progress, [&](std::int64_t batch, double) {
    backend_.copy_to_host(losses.data(), model_.losses());
    for (std::int64_t i = 0; i < shape.rows(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const std::int64_t sequence = batch * shape.batch + i / shape.positions;
      if (host_targets_[at] < 0) continue;
      sums[static_cast<std::size_t>(sequence)] += static_cast<double>(losses[at]);
      sums[static_cast<std::size_t>(sequences + sequence)] += host_targets_[at] != host_predictions_[at];
    }
  });
  if (left) return {};
  mesh_.world().set_purpose("losses of sequences");
  mesh_.world().all_reduce({sums.data(), DType::f64, {static_cast<std::int64_t>(sums.size())}}).wait();
  std::vector<SequenceScore> scores;
  for (std::int64_t i = 0; i < sequences; ++i)
    scores.push_back({sums[static_cast<std::size_t>(i)], sums[static_cast<std::size_t>(sequences + i)] == 0});
  return scores;
}

Evaluation Evaluator::random(std::string_view split, const TokenFile& file, std::int64_t sequences,
                             const EvaluationProgress& progress) {
  const EvaluationSampler sampler(file, split, model_.options().batch.positions, seed_);
  return over(
      sequences,
      [&](std::int64_t sequence, std::int32_t* tokens, std::int32_t* targets) {
        sampler.fill(sequence, tokens, targets);
      },
      progress);
}

Evaluation Evaluator::whole(const TokenFile& file, std::int64_t most, const EvaluationProgress& progress) {
  const SequentialSampler sampler(file, model_.options().batch.positions);
  return over(
      most > 0 ? std::min(sampler.windows(), most) : sampler.windows(),
      [&](std::int64_t sequence, std::int32_t* tokens, std::int32_t* targets) {
        sampler.fill(sequence, tokens, targets);
      },
      progress);
}

}  // namespace shoal
