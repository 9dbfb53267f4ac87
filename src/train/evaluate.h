// Evaluation: loss, perplexity and next-token accuracy of a model on a split. It changes nothing of the run.
// No layout changes the set of sequences. They are evaluated in micro-batches, which are assigned to the
// ranks round-robin; the losses are added in the order of the micro-batches, so that any number of ranks
// finds the same bits, and another micro-batch differs by rounding alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "core/progress.h"
#include "data/text_size.h"
#include "data/token_file.h"
#include "parallel/pipeline/pipeline.h"
#include "report/metrics.h"

namespace shoal {

struct Evaluation {
  double loss_sum = 0;  // nats
  std::int64_t correct = 0;
  std::int64_t tokens = 0;
  bool left = false;  // before its end, as its progress asked: the numbers are of a part

  double loss() const { return loss_sum / static_cast<double>(tokens); }  // per token
  double perplexity() const { return std::exp(loss()); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(tokens); }
  // The perplexities of a whole split whose text has this size.
  TextPerplexity in_text(const TextSize& text) const {
    return {.word = std::exp(loss_sum / static_cast<double>(text.words)),
            .byte = std::exp(loss_sum / static_cast<double>(text.bytes))};
  }
};

// A sequence's part of an evaluation.
struct SequenceScore {
  double loss = 0;     // nats, of its targets
  bool exact = false;  // each target is the most likely token
};

// Told how many sequences of how many are done. Says, alike on all ranks, whether to go on.
using EvaluationProgress = std::function<bool(std::int64_t done, std::int64_t total)>;
EvaluationProgress show_on(Progress& progress);  // which must outlive it

class Evaluator {
 public:
  // Micro-batches have the shape of the model's. The seed chooses the random sequences. All ranks of the mesh
  // evaluate together, and all get the result.
  Evaluator(Backend& backend, Pipeline& model, Mesh& mesh, std::uint64_t seed);

  // Random sequences of the split of that name: the same ones at every call, so that evaluations compare.
  Evaluation random(std::string_view split, const TokenFile& file, std::int64_t sequences,
                    const EvaluationProgress& progress = {});
  // The whole file in order, every token but the first a target once; or its first `most` sequences, unless
  // that is 0.
  Evaluation whole(const TokenFile& file, std::int64_t most = 0, const EvaluationProgress& progress = {});

  // Fills in one sequence: tokens, targets i32 [positions], which hold zeros and -1.
  using FillSequence =
      std::function<void(std::int64_t sequence, std::int32_t* tokens, std::int32_t* targets)>;
  // One score for each sequence; none, on all ranks, where progress asked to leave.
  std::vector<SequenceScore> score(std::int64_t sequences, const FillSequence& fill,
                                   const EvaluationProgress& progress = {});
  std::int64_t positions() const { return model_.options().batch.positions; }

 private:
  // Calls each(batch, its loss) after each of this rank's micro-batches, on ranks that know losses. Returns
  // whether it ended early.
  template <typename Each>
  bool for_batches(std::int64_t sequences, const FillSequence& fill, const EvaluationProgress& progress,
                   Each&& each);
  Evaluation over(std::int64_t sequences, const FillSequence& fill, const EvaluationProgress& progress);
  void fill_batch(std::int64_t batch, std::int64_t sequences, const FillSequence& fill);
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
