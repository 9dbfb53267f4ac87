// shoal eval: measures loss, perplexity and next-token accuracy of a checkpoint.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/checkpoint_option.h"
#include "cli/text_model.h"
#include "config/pretrained.h"
#include "core/error.h"
#include "core/file.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "data/batch_sampler.h"
#include "data/dataset.h"
#include "data/task.h"
#include "launch/ranks.h"
#include "train/evaluate.h"
#include "train/facts.h"
#include "train/model_io.h"
#include "train/remedies.h"
#include "train/task_score.h"

namespace shoal::cli {
namespace {

constexpr std::int64_t kMostSequences = std::int64_t{1} << 40;  // the limit of eval.sequences

struct EvalOptions {
  std::string checkpoint;
  std::string split = "val";
  std::int64_t sequences = 0;
  std::int64_t batches = 0;  // of train.global_batch sequences
  int ranks = 0;
  bool int8 = false;
  std::vector<std::string> settings;
  std::string task;   // a file of items instead of a split
  std::string items;  // a new file for each item's result
};

Dataset open_folder(const std::filesystem::path& dir, const DatasetOptions& options, World& world) {
  std::optional<Dataset> data;
  all_or_none(world.ranks, [&] {
    if (weights_at(dir)) {
      fail_user("{} has weights but no data; give the data to evaluate on, data.dir=FOLDER", dir.string());
    }
    if (dir.is_relative() && !std::filesystem::is_directory(dir)) {
      fail_user("{}: no such data folder in {}; give the data's folder, data.dir=FOLDER", dir.string(),
                std::filesystem::current_path().string());
    }
    with_remedy([&] { data.emplace(dir, options); });
    refuse_larger_vocabulary(*data, options.vocab_size, "evaluate on");
  });
  some_for_all_at_length(world.ranks, world.local_rank == 0, [&] { with_remedy([&] { data->verify(); }); });
  require_agreement(world.ranks, facts_of(*data));
  return std::move(*data);
}

// The number of sequences, from --sequences or --batches, or from the keys in [eval] where they are
// arguments; 0: the whole split.
std::int64_t sequences_of(const EvalOptions& options, Config config) {
  const bool set = config.fixed.contains("eval.sequences") || config.fixed.contains("eval.batches");
  if (set && options.sequences == 0 && options.batches == 0) return eval_sequences(config);
  config.eval.sequences = options.sequences;
  config.eval.batches = options.batches > 0 ? options.batches : EvalConfig{}.batches;
  if (options.batches > 0) config.eval.sequences = EvalConfig{}.sequences;
  validate(config);
  return eval_sequences(config);
}

// Which model: other programs' weights have no step.
std::string which(const EvalOptions& options, std::int64_t step) {
  return weights_at(options.checkpoint) ? "with the weights in " + options.checkpoint
                                        : fmt::format("after step {}", step);
}

void print(const EvalOptions& options, const Dataset& data, bool truncated, std::int64_t step,
           std::int64_t sequences, const Evaluation& result) {
  fmt::print("{} of {} {}, {}: {} tokens\n", options.split, data.dir().string(), which(options, step),
             sequences > 0 ? fmt::format("{} random sequences", with_commas(sequences)) : "every token once",
             with_commas(result.tokens));
  fmt::print("loss        {:.6f} nats per token\n", result.loss());
  fmt::print("perplexity  {:.4f} per token\n", result.perplexity());
  if (sequences == 0 && data.has_tokenizer()) {
    const auto text = result.in_text(measure_text(data.split(options.split), data.tokenizer()));
    fmt::print("            {:.6g} per word, {:.4f} per byte\n", text.word, text.byte);
  }
  fmt::print("accuracy    {:.2f} % of next tokens\n", result.accuracy() * 100);
  const auto floor = data.split_entropy(options.split);
  if (floor && !truncated) {  // the entropy is that of the whole split
    fmt::print("floor       {:.6f} nats per token, this split's own entropy\n", *floor);
  }
}

std::string items_text(const Task& task, const TaskScore& score) {
  std::string lines;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const auto& item = score.items[i];
    auto logprobs = nlohmann::json::array();
    for (const double loss : item.losses) logprobs.push_back(-loss);
    nlohmann::ordered_json line = {
        {"item", i + 1}, {"answer", task.items[i].answer}, {"choice", item.choice}};
    line["choice_by_length"] = item.choice_by_length;
    line["exact"] = item.exact;
    line["logprobs"] = logprobs;
    lines += line.dump() + "\n";
  }
  return lines;
}

// Standard errors are those of a mean of zeros and ones.
void print_task(const EvalOptions& options, const Task& task, std::int64_t step, const TaskScore& score) {
  const auto count = static_cast<double>(task.items.size());
  const auto line = [&](const char* name, double share) {
    fmt::print("{:<12}{:.2f} % +- {:.2f}\n", name, 100 * share,
               100 * std::sqrt(share * (1 - share) / std::max(1.0, count - 1)));
  };
  fmt::print("task {} {}: {} items\n", task.name, which(options, step), with_commas(std::ssize(task.items)));
  line("accuracy", score.accuracy);
  if (task.kind == Task::Kind::choice) {
    line("by length", score.accuracy_by_length);
  } else {
    fmt::print("perplexity  {:.4f} per last word\n", score.perplexity);
  }
}

void evaluate_task(const EvalOptions& options, const Config& given, World& world) {
  require_agreement(world.ranks, facts_of(given));
  Task task;
  std::optional<StagedFile> items;
  all_or_none(world.ranks, [&] {
    task = read_task(options.task);
    if (options.items.empty() || world.ranks.rank() != 0) return;
    require_new_file("--items", options.items);
    items.emplace(options.items);
  });
  const auto checkpoint = find_checkpoint(options.checkpoint, world.ranks);
  const auto loaded = load_model(checkpoint, given, world.ranks, backend_options(given, world),
                                 Runtime::Use::evaluation, [&](RunPlan& plan, const Tokenizer* tokenizer) {
                                   if (!tokenizer)
                                     fail_user("{} has no tokenizer, which a task needs", options.checkpoint);
                                   // Items are short: positions behind the longest would be computed in vain.
                                   auto& positions = plan.pipeline.batch.positions;
                                   const auto longest = positions_of(task, *tokenizer, positions);
                                   if (!plan.sequence) positions = longest;
                                 });
  const auto& runtime = *loaded.runtime;
  if (options.int8) runtime.engine().to_int8();
  Evaluator evaluator(runtime.backend(), runtime.model(), runtime.mesh(), 0);
  Progress progress("task " + task.name, 0, "sequences");
  const auto score = score_task(evaluator, task, *loaded.tokenizer, show_on(progress));
  progress.finish();
  if (world.ranks.rank() != 0) return;
  print_task(options, task, loaded.step, *score);
  if (!items) return;
  items->write(items_text(task, *score));
  items->commit();
}

void evaluate(const EvalOptions& options, const Config& config, World& world) {
  if (!options.task.empty()) return evaluate_task(options, config, world);
  require_agreement(world.ranks, facts_of(config));
  const std::int64_t sequences = sequences_of(options, config);
  const auto checkpoint = find_checkpoint(options.checkpoint, world.ranks);
  const auto loaded =
      load_model(checkpoint, config, world.ranks, backend_options(config, world), Runtime::Use::evaluation);
  const auto& runtime = *loaded.runtime;
  if (options.int8) runtime.engine().to_int8();
  Evaluator evaluator(runtime.backend(), runtime.model(), runtime.mesh(),
                      static_cast<std::uint64_t>(config.run.seed));
  const auto sources = config.data.sources();
  double loss = 0;
  for (const auto& [dir, weight] : sources) {
    // A run with data.truncate has seen only the beginning of the train split.
    const auto data = open_folder(
        dir, {.truncate = config.data.truncate, .vocab_size = loaded.plan.model.vocab_size}, world);
    warn_of_other_tokenizer(data, loaded.plan.model.vocab_size, loaded.tokenizer.get());
    const TokenFile* split = nullptr;
    all_or_none(world.ranks, [&] { split = &data.split(options.split); });
    Progress progress("evaluating " + options.split, 0, "sequences");
    const auto show = show_on(progress);
    const auto share = share_of(sequences, weight);
    const auto result = sequences > 0 ? evaluator.random(options.split, *split, share, show)
                                      : evaluator.whole(*split, 0, show);
    progress.finish();
    loss += weight * result.loss();
    const bool truncated = options.split == "train" && config.data.truncate < 1;
    if (world.ranks.rank() == 0) print(options, data, truncated, loaded.step, share, result);
  }
  if (sources.size() > 1 && world.ranks.rank() == 0) {
    fmt::print("the mixture (data.dirs): loss {:.6f}, perplexity {:.4f} per token\n", loss, std::exp(loss));
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  auto options = std::make_shared<EvalOptions>();
  auto* command = add_command(
      app, "eval", "Measure a checkpoint's loss, perplexity and accuracy",
      {{"shoal eval --checkpoint runs/quickstart", "the latest checkpoint of a run, on all of val"},
       {"shoal eval --checkpoint runs/quickstart/checkpoints/best --split train --sequences 500",
        "the best one, on 500 random sequences of train"},
       {"shoal eval --checkpoint hf:openai-community/gpt2 --task hellaswag.jsonl",
        "a task of multiple choice"}});
  add_checkpoint_option(*command, options->checkpoint);
  auto* split = command->add_option("--split", options->split, "val, train or test");
  split->check(takes_one_of({"val", "train", "test"}))->capture_default_str();
  auto* sequences = command->add_option("--sequences", options->sequences,
                                        "Random sequences to use; 0 is the whole split in order");
  sequences->check(takes_integer(0, kMostSequences))->capture_default_str();
  auto* batches = command->add_option("--batches", options->batches,
                                      "Random batches to use, of train.global_batch sequences");
  batches->check(takes_integer(0, kMostSequences))->excludes(sequences);
  command
      ->add_option("--task", options->task,
                   "Score a task instead: JSON lines of HellaSwag (multiple choice), of LAMBADA (the last "
                   "word), or with context, choices and answer")
      ->option_text("FILE.jsonl")
      ->excludes(split, sequences, batches);
  command->add_option("--items", options->items, "A new file for the result of each of the task's items")
      ->option_text("FILE.jsonl");
  add_int8(*command, options->int8);
  add_ranks(*command, options->ranks);
  add_settings(*command, options->settings);
  command->callback([options, command] {
    if (!options->items.empty() && options->task.empty()) throw CLI::RequiresError("--items", "--task");
    require_checkpoint(*command, options->checkpoint, options->settings);
    if (detect_launcher().rank == 0) set_stop_message("stopped; nothing was measured");
    with_ranks(
        options->ranks, [&] { return load_model_config(options->checkpoint, options->settings); },
        [&](const Config& config, World& world) { evaluate(*options, config, world); });
  });
}

}  // namespace shoal::cli
