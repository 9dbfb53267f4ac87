// A run's evaluations: of val and train on the way, of test at the end.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "config/plan.h"
#include "data/mixture.h"
#include "data/text_size.h"
#include "report/reporter.h"
#include "train/model_io.h"
#include "train/runtime.h"
#include "train/sampled_texts.h"
#include "train/stop_request.h"
#include "train/task_score.h"

namespace shoal {

class Validation {
 public:
  // All must outlive this. Collective, as the functions below.
  Validation(const Config& config, const RunPlan& plan, const Mixture& data, Runtime& runtime,
             Reporter& reporter, StopRequest& stop);

  // Evaluates the model, or with gossip the mean of the workers' models, and reports it. A signal makes all
  // ranks leave the evaluation, which state.evaluation_left keeps for the run that is resumed. Returns
  // whether the val loss is the lowest until now; it is in state.best_val_loss then.
  bool run(TrainState& state, const TrainTime& time);
  // The val loss of the last evaluation; infinite before the first.
  double val_loss() const { return val_loss_; }

  // Whether the data has a test split.
  bool tests() const;
  // After the last step. Returns whether the evaluation was made: a signal ends it.
  bool test(std::int64_t step);

 private:
  // A split of all sources: means by their weights.
  struct Measured {
    double loss = 0, accuracy = 0;
    std::vector<SourceLoss> losses;  // of a mixture's sources
    std::optional<TextPerplexity> text;
    bool left = false;  // before its end
  };
  // Random sequences, or with 0 the whole split; of train, as many sequences as val has.
  Measured measure(const std::string& split, std::int64_t sequences);

  // Scores eval.tasks; false where a signal ended it.
  bool score_tasks(std::vector<TaskResult>& results);

  // The texts of eval.samples, on rank 0.
  std::vector<std::string> write_samples();

  // The perplexities of an evaluation of the whole split: on rank 0, where the data has a tokenizer.
  std::optional<TextPerplexity> text_perplexity(const std::string& split, const Evaluation& found);

  const Config& config_;
  const RunPlan& plan_;
  const Mixture& data_;
  Runtime& runtime_;
  Reporter& reporter_;
  StopRequest& stop_;
  Evaluator evaluator_;
  std::vector<Task> tasks_;
  std::optional<SampledTexts> texts_;
  double val_loss_;
  std::map<std::string, TextSize> text_sizes_;  // of splits
};

}  // namespace shoal
