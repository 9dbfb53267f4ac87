// shoal eval: loss, perplexity and next-token accuracy of a checkpoint.
#include <memory>

#include "cli/command.h"
#include "core/error.h"
#include "core/text.h"
#include "data/dataset.h"
#include "train/evaluate.h"
#include "train/memory.h"
#include "train/model_io.h"

namespace shoal::cli {
namespace {

struct Options {
  std::string checkpoint;
  std::string split = "val";
  std::int64_t batches = 0;
  std::vector<std::string> settings;
};

void evaluate(const Options& options) {
  auto loaded = load_model(options.checkpoint, options.settings);
  const Dataset data(loaded.config.data.dir, {.vocab_size = loaded.gpt.vocab_size});
  if (data.vocab_size() > loaded.gpt.vocab_size) {
    fail_user("{} has a vocabulary of {}, the model one of {}; evaluate on data of the model's own tokenizer",
              loaded.config.data.dir, data.vocab_size(), loaded.gpt.vocab_size);
  }
  data.verify();
  auto gpt_settings = gpt_options(loaded.config);
  gpt_settings.backward = false;
  Gpt model(*loaded.backend, *loaded.engine, loaded.gpt, gpt_settings);
  Evaluator evaluator(*loaded.backend, model, static_cast<std::uint64_t>(loaded.config.run.seed));

  Progress progress("evaluating " + options.split, 0, "batches");
  const auto show = show_on(progress);
  const auto& split = data.split(options.split);
  const auto result =
      options.batches > 0 ? evaluator.random(split, options.batches, show) : evaluator.whole(split, 0, show);
  progress.finish();
  fmt::print("{} of {} after step {}, {}: {} tokens\n", options.split, loaded.config.data.dir, loaded.step,
             options.batches > 0 ? fmt::format("{} random batches", options.batches) : "every token once",
             with_commas(result.tokens));
  fmt::print("loss        {:.6f} nats per token\n", result.loss());
  fmt::print("perplexity  {:.4f}\n", result.perplexity());
  fmt::print("accuracy    {:.2f} % of next tokens\n", result.accuracy() * 100);
  if (const auto floor = data.split_entropy(options.split)) {
    fmt::print("floor       {:.6f} nats per token, this split's own entropy\n", *floor);
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = add_command(
      app, "eval", "Measure a checkpoint's loss, perplexity and accuracy",
      {{"shoal eval --checkpoint runs/quickstart", "the latest checkpoint of a run, on all of val"},
       {"shoal eval --checkpoint runs/quickstart/checkpoints/best --split train --batches 50",
        "the best one, on 50 random batches of train"}});
  command->add_option("--checkpoint", options->checkpoint, "A run, or one of its checkpoints")->required();
  command->add_option("--split", options->split, "val, train or test")->capture_default_str();
  command->add_option("--batches", options->batches, "Random batches to use; 0 is the whole split in order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_settings(*command, options->settings);
  command->callback([options] { evaluate(*options); });
}

}  // namespace shoal::cli
