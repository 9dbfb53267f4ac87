// The score of a model on a task.
#pragma once

#include <optional>
#include <vector>

#include "data/task.h"
#include "train/evaluate.h"

namespace shoal {

struct TaskScore {
  struct Item {
    std::vector<double> losses;  // of its choices, in nats
    int choice = 0;              // the likeliest, the first among equals
    int choice_by_length = 0;    // the likeliest by nats per character
    bool exact = false;          // the answer is what the model would write itself, token by token
  };
  std::vector<Item> items;

  std::int64_t items_right = 0, right_by_length = 0;
  double accuracy = 0;            // of last words: those that the model would write
  double accuracy_by_length = 0;  // of choices
  double perplexity = 0;          // of last words: exp of their mean loss
};

// Scores all items; collective over the evaluator's mesh, and all ranks get the score. Nothing where progress
// asked to leave. Throws UserError, with the item's number, where the tokenizer cannot read it or it does not
// fit the model.
std::optional<TaskScore> score_task(Evaluator& evaluator, const Task& task, const Tokenizer& tokenizer,
                                    const EvaluationProgress& progress = {});

// The longest sequence of the task, in positions of a model that has so many.
std::int64_t positions_of(const Task& task, const Tokenizer& tokenizer, std::int64_t positions);

}  // namespace shoal
