#include "cli/text_model.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "comm/agreement.h"
#include "config/pretrained.h"
#include "core/error.h"
#include "core/log.h"
#include "data/download.h"

namespace shoal::cli {
namespace {

std::string without_tokenizer(const std::optional<Weights>& weights, const std::string& checkpoint) {
  if (!weights) return checkpoint + " was trained on token ids only (data without meta.json or meta.pkl)";
  if (weights->format == WeightsFormat::hugging_face) return checkpoint + " has no vocab.json and merges.txt";
  return checkpoint + " has no vocab.json and merges.txt, nor meta.pkl, beside it";
}

}  // namespace

void add_text_backend(CLI::App& command, TextModelArguments& arguments) {
  command
      .add_option("--backend", arguments.backend, "cpu, cuda or reference (default: the run's train.backend)")
      ->option_text("NAME");
  command.add_option("--threads", arguments.threads, "Threads (default: the run's train.threads)")
      ->check(takes_integer(0))
      ->option_text("N");
  add_int8(command, arguments.int8);
}

void add_int8(CLI::App& command, bool& int8) {
  command.add_flag("--int8", int8,
                   "Quantise the weights to 8 bits, with one scale per row, so that each token reads less "
                   "memory; CPU only");
}

Config load_text_config(const TextModelArguments& arguments) {
  auto settings = arguments.settings;
  if (!arguments.backend.empty()) settings.push_back("train.backend=" + arguments.backend);
  if (!arguments.threads.empty()) settings.push_back("train.threads=" + arguments.threads);
  auto config = load_model_config(arguments.checkpoint, settings);
  config.parallel.zero = 0;
  config.parallel.replicate = 1;
  config.parallel.sequence = false;
  config.parallel.timeout = 1e8;
  if (config.parallel.pipeline > 1)
    fail_user("text is generated without pipeline stages; leave out parallel.pipeline");
  return config;
}

LoadedModel load_text_model(const TextModelArguments& arguments, const Config& config, Communicator& group,
                            World& world) {
  const auto& checkpoint = arguments.checkpoint;
  const auto found = find_checkpoint(checkpoint, world.ranks);
  std::optional<LoadedModel> model;
  const auto load = [&] {
    model.emplace(load_model(found, config, group, backend_options(config, world), Runtime::Use::parameters));
    if (arguments.int8) model->runtime->engine().to_int8();
    const auto weights = weights_at(found);
    const bool own = weights && weights->format == WeightsFormat::hugging_face;  // a folder with a tokenizer
    if (!model->tokenizer && has_gpt2_size(model->plan.model.vocab_size) && !own) {
      model->tokenizer = load_bpe_tokenizer(fetch_gpt2_vocabulary({}));
      if (!log::thread_muted()) {
        fmt::print(stderr, "shoal: {}; its ids are assumed to be GPT-2's\n",
                   without_tokenizer(weights, checkpoint));
      }
    }
    if (!model->tokenizer) {
      fail_user("{}, so there is no tokenizer to write text with", without_tokenizer(weights, checkpoint));
    }
  };
  // A group has collectives of its own meanwhile, so that its ranks cannot wait for each other here.
  group.size() > 1 ? load() : all_or_none(world.ranks, load);
  return std::move(*model);
}

}  // namespace shoal::cli
