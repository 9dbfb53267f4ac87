// Evaluation: loss, perplexity and next-token accuracy of a model on a split. It changes nothing of the run.
// The batches are dealt to the ranks in turn and their losses added in the order of the batches, so that any
// number of ranks finds the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/progress.h"
#include "data/token_file.h"
#include "parallel/pipeline.h"

namespace shoal {

struct Evaluation {
  double loss_sum = 0;  // nats
  std::int64_t correct = 0;
  std::int64_t tokens = 0;

  double loss() const { return loss_sum / static_cast<double>(tokens); }  // per token
  double perplexity() const { return std::exp(loss()); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(tokens); }
};

// Told how many batches of how many are done.
using EvaluationProgress = std::function<void(std::int64_t done, std::int64_t total)>;
EvaluationProgress show_on(Progress& progress);  // which must outlive it

class Evaluator {
 public:
  // Batches have the shape of the model's micro-batch. The seed chooses the random batches. All ranks of the
  // mesh evaluate together, and all get the result.
  Evaluator(Backend& backend, Pipeline& model, Mesh& mesh, std::uint64_t seed);

  // The same `batches` random batches of the split at every call, so that evaluations of a run compare.
  Evaluation random(const TokenFile& split, std::int64_t batches, const EvaluationProgress& progress = {});
  // The whole split in order, every token but the first a target once; at most `batches` batches of it if
  // that is not 0.
  Evaluation whole(const TokenFile& split, std::int64_t batches = 0, const EvaluationProgress& progress = {});

 private:
  // Fills host_tokens_ and host_targets_ with a batch.
  using FillBatch = std::function<void(std::int64_t batch)>;
  Evaluation over(std::int64_t batches, const FillBatch& fill, const EvaluationProgress& progress);
  double run_batch();

  Backend& backend_;
  Pipeline& model_;
  Mesh& mesh_;
  std::uint64_t seed_;
  Arena arena_;
  Tensor tokens_, targets_, loss_;  // on the backend
  std::vector<std::int32_t> host_tokens_, host_targets_, host_predictions_;
};

}  // namespace shoal
