#include "train/task_score.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace shoal {
namespace {

std::vector<TaskSequence> sequences_of(const Task& task, const Tokenizer& tokenizer, std::int64_t positions) {
  std::vector<TaskSequence> sequences;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const auto& item = task.items[i];
    try {
      for (int choice = 0; choice < static_cast<int>(item.choices.size()); ++choice)
        sequences.push_back(make_sequence(item, choice, tokenizer, positions));
    } catch (const UserError& error) {
      fail_user("task {}, item {}: {}", task.name, i + 1, error.what());
    }
  }
  return sequences;
}

}  // namespace

std::int64_t positions_of(const Task& task, const Tokenizer& tokenizer, std::int64_t positions) {
  std::int64_t most = 1;
  for (const auto& sequence : sequences_of(task, tokenizer, positions))
    most = std::max<std::int64_t>(most, std::ssize(sequence.tokens) - 1);
  return most;
}

std::optional<TaskScore> score_task(Evaluator& evaluator, const Task& task, const Tokenizer& tokenizer,
                                    const EvaluationProgress& progress) {
  const auto sequences = sequences_of(task, tokenizer, evaluator.positions());
  const auto found = evaluator.score(
      std::ssize(sequences),
      [&](std::int64_t i, std::int32_t* tokens, std::int32_t* targets) {
        const auto& [all, count] = sequences[static_cast<std::size_t>(i)];
        const auto inputs = std::ssize(all) - 1;
        std::copy_n(all.begin(), inputs, tokens);
        std::copy_n(all.end() - count, count, targets + inputs - count);
      },
      progress);
  if (found.empty()) return std::nullopt;
  TaskScore score;
  double losses = 0;
  std::int64_t exact = 0;
  auto next = found.begin();
  for (const auto& item : task.items) {
    TaskScore::Item one;
    std::vector<double> by_length;
    for (const auto& choice : item.choices) {
      one.losses.push_back(next->loss);
      by_length.push_back(next->loss / static_cast<double>(std::max<std::int64_t>(1, characters_of(choice))));
      if (&choice == &item.choices[static_cast<std::size_t>(item.answer)]) one.exact = next->exact;
      ++next;
    }
    one.choice = static_cast<int>(std::ranges::min_element(one.losses) - one.losses.begin());
    one.choice_by_length = static_cast<int>(std::ranges::min_element(by_length) - by_length.begin());
    score.items_right += one.choice == item.answer;
    score.right_by_length += one.choice_by_length == item.answer;
    losses += one.losses[static_cast<std::size_t>(item.answer)];
    exact += one.exact;
    score.items.push_back(std::move(one));
  }
  const auto count = static_cast<double>(task.items.size());
  if (task.kind == Task::Kind::last_word) score.items_right = exact;
  score.accuracy = static_cast<double>(score.items_right) / count;
  score.accuracy_by_length = static_cast<double>(score.right_by_length) / count;
  score.perplexity = std::exp(losses / count);
  return score;
}

}  // namespace shoal
