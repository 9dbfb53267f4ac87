#include "train/validation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/terminal.h"
#include "core/text.h"
#include "core/trace.h"
#include "data/batch_sampler.h"

namespace shoal {

Validation::Validation(const Config& config, const RunPlan& plan, const Mixture& data, Runtime& runtime,
                       Reporter& reporter, StopRequest& stop)
    : config_(config),
      plan_(plan),
      data_(data),
      runtime_(runtime),
      reporter_(reporter),
      stop_(stop),
      evaluator_(runtime.backend(), runtime.model(), runtime.mesh(),
                 static_cast<std::uint64_t>(config.run.seed)),
      val_loss_(std::numeric_limits<double>::infinity()) {
  all_or_none(runtime.ranks(), [&] {
    for (const auto& file : split_list(config.eval.tasks)) {
      tasks_.push_back(read_task(file));
      const auto& name = tasks_.back().name;
      if (std::ranges::count(tasks_, name, &Task::name) > 1)
        fail_user("eval.tasks: two files are called {}; rename one, since results are kept by name", name);
      if (!data.first().has_tokenizer())
        fail_user("eval.tasks needs a tokenizer, and {} has none", data.first().dir().string());
      positions_of(tasks_.back(), data.first().tokenizer(), plan.model.block_size);  // which have to fit
    }
    if (config.eval.samples > 0 && !data.first().has_tokenizer())
      fail_user("eval.samples needs a tokenizer, and {} has none", data.first().dir().string());
    if (config.eval.samples > 0) texts_.emplace(config, plan, runtime, data.first().tokenizer());
  });
}

bool Validation::score_tasks(std::vector<TaskResult>& results) {
  for (const auto& task : tasks_) {
    Progress progress("task " + task.name, 0, "sequences");
    const auto draw = show_on(progress);
    const auto score = score_task(evaluator_, task, data_.first().tokenizer(), [&](auto done, auto total) {
      draw(done, total);
      stop_.share(runtime_.ranks());
      return !stop_;
    });
    progress.clear();
    if (!score) return false;
    results.emplace_back(task.name, score->accuracy);
  }
  return true;
}

std::vector<std::string> Validation::write_samples() {
  if (!texts_) return {};
  if (runtime_.ranks().rank() == 0 && status_line::columns() > 0) status_line::draw("writing texts");
  auto texts = texts_->write();
  status_line::clear();
  return texts;
}

Validation::Measured Validation::measure(const std::string& split, std::int64_t sequences) {
  Progress progress("evaluating " + split, 0, "sequences");
  const auto draw = show_on(progress);
  const auto show = [&](std::int64_t done, std::int64_t total) {
    draw(done, total);
    stop_.share(runtime_.ranks());
    return !stop_;
  };
  Measured all;
  for (const auto& [weight, source] : data_.sources()) {
    const auto& file = source.split(split);
    // The train split may be huge: as many sequences of it as the val split has.
    const auto most =
        split == "train" ? SequentialSampler(source.val(), plan_.model.block_size).windows() : 0;
    const auto found = sequences > 0 ? evaluator_.random(split, file, share_of(sequences, weight), show)
                                     : evaluator_.whole(file, most, show);
    all.left = found.left;
    if (all.left) break;
    all.loss += weight * found.loss();
    all.accuracy += weight * found.accuracy();
    if (data_.is_mixed()) all.losses.emplace_back(source.dir().string(), found.loss());
    if (sequences == 0 && split != "train" && !data_.is_mixed()) all.text = text_perplexity(split, found);
  }
  progress.clear();
  return all;
}

bool Validation::run(TrainState& state, const TrainTime& time) {
  const trace::Span span("evaluation", "evaluation");
  reporter_.clear();
  auto& engine = runtime_.engine();
  const double distance = engine.show_average();
  const std::int64_t sequences = eval_sequences(config_);
  auto val = measure("val", sequences);
  const auto train = val.left ? Measured{} : measure("train", sequences);
  std::vector<TaskResult> tasks;
  state.evaluation_left = val.left || train.left || !score_tasks(tasks);
  auto samples = state.evaluation_left ? std::vector<std::string>() : write_samples();
  const bool keep = config_.gossip.continue_from_average && plan_.mesh.workers > 1 && !state.evaluation_left;
  keep ? engine.keep_average() : engine.drop_average();
  if (state.evaluation_left) return false;
  reporter_.evaluation(
      {.step = state.step,
       .train_loss = train.loss,
       .val_loss = val.loss,
       .val_accuracy = val.accuracy,
       .val_text = val.text,
       .val_losses = std::move(val.losses),
       .tasks = std::move(tasks),
       .samples = std::move(samples),
       .entropy_floor = data_.entropy_per_token(),
       .consensus_distance = plan_.mesh.workers > 1 ? std::optional(distance) : std::nullopt},
      time);
  val_loss_ = val.loss;
  const bool best = val_loss_ < state.best_val_loss;
  if (best) state.best_val_loss = val_loss_;
  state.evaluations_since_best = best ? 0 : state.evaluations_since_best + 1;
  return best;
}

std::optional<TextPerplexity> Validation::text_perplexity(const std::string& split, const Evaluation& found) {
  if (runtime_.ranks().rank() != 0 || !data_.first().has_tokenizer()) return std::nullopt;
  const auto [known, fresh] = text_sizes_.try_emplace(split);
  if (fresh) known->second = measure_text(data_.first().split(split), data_.first().tokenizer());
  return found.in_text(known->second);
}

bool Validation::tests() const {
  const auto has_target = [](const auto& source) { return source.data.split("test").size() > 1; };
  return data_.has_split("test") && std::ranges::all_of(data_.sources(), has_target);
}

bool Validation::test(std::int64_t step) {
  const trace::Span span("evaluation", "evaluation of the test split");
  auto& engine = runtime_.engine();
  engine.show_average();
  auto test = measure("test", 0);
  engine.drop_average();
  if (test.left) return false;
  reporter_.test({.step = step,
                  .loss = test.loss,
                  .accuracy = test.accuracy,
                  .text = test.text,
                  .losses = std::move(test.losses)});
  return true;
}

}  // namespace shoal
