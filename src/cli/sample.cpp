// shoal sample: generates text from a checkpoint and prints it token by token.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "cli/checkpoint_option.h"
#include "config/layout.h"
#include "config/pretrained.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/text.h"
#include "data/download.h"
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "generate/text_stream.h"
#include "launch/ranks.h"
#include "train/facts.h"
#include "train/model_io.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

struct SampleArguments {
  std::string checkpoint, prompt, prompt_file, stop, backend, threads;
  std::int64_t samples = 1;
  int ranks = 0;
  bool no_cache = false;
  SampleOptions sampling;
  std::vector<std::string> settings;
};

std::string read_prompt(const SampleArguments& options) {
  if (options.prompt_file.empty()) return options.prompt;
  if (fs::is_directory(options.prompt_file)) {
    fail_user("--prompt-file {} is a folder; give a file", options.prompt_file);
  }
  std::ifstream stream(options.prompt_file, std::ios::binary);
  if (!stream) fail_user("cannot read the prompt file {}: {}", options.prompt_file, std::strerror(errno));
  return {std::istreambuf_iterator<char>(stream), {}};
}

Config load_config(const SampleArguments& options) {
  auto settings = options.settings;
  if (!options.backend.empty()) settings.push_back("train.backend=" + options.backend);
  if (!options.threads.empty()) settings.push_back("train.threads=" + options.threads);
  auto config = load_model_config(options.checkpoint, settings);
  if (ranks_of_model(config.parallel) > 1) {
    fail_user(
        "shoal sample runs the whole model on every rank, each for its own texts; leave out parallel.tensor "
        "and parallel.pipeline (--ranks N generates N texts at a time)");
  }
  config.parallel.zero = 0;
  config.parallel.replicate = 1;
  config.parallel.timeout = 1e8;  // a rank may wait long for another one's texts
  return config;
}

// Whether token ids may be those of GPT-2: a vocabulary of 50,257, or padded to a multiple of 64 as in
// nanoGPT and llm.c.
bool has_gpt2_size(const GptConfig& gpt) { return gpt.vocab_size == 50'257 || gpt.vocab_size == 50'304; }

LoadedModel load(const SampleArguments& options, const Config& config, Communicator& alone, World& world) {
  const auto checkpoint = find_checkpoint(options.checkpoint, world.ranks);
  std::optional<LoadedModel> model;
  all_or_none(world.ranks, [&] {
    model.emplace(
        load_model(checkpoint, config, alone, backend_options(config, world), Runtime::Use::parameters));
    if (!model->tokenizer && has_gpt2_size(model->plan.model) && !is_hugging_face_folder(checkpoint)) {
      model->tokenizer = load_gpt2_tokenizer(fetch_gpt2_vocabulary({}));
      if (!log::thread_muted()) {
        fmt::print(stderr, "shoal: {} was trained on token ids only; they are assumed to be GPT-2's\n",
                   options.checkpoint);
      }
    }
    if (!model->tokenizer) {
      fail_user("{} {}, so there is no tokenizer to write text with", options.checkpoint,
                is_hugging_face_folder(checkpoint)
                    ? "has no vocab.json and merges.txt"
                    : "was trained on token ids only (data without meta.json or meta.pkl)");
    }
  });
  return std::move(*model);
}

// The prompt of a text without a prompt: the end-of-text token, or else a newline.
std::int32_t first_token(const Tokenizer& tokenizer) {
  if (const auto end = tokenizer.end_of_text()) return *end;
  std::vector<std::int32_t> newline;
  try {
    tokenizer.encode("\n", newline);
  } catch (const UserError&) {  // the vocabulary has no newline
    return 0;
  }
  return newline.front();
}

std::vector<std::int32_t> encode(const std::string& prompt, const LoadedModel& model) {
  std::vector<std::int32_t> tokens;
  try {
    model.tokenizer->encode(prompt, tokens);
  } catch (const UserError& error) {
    fail_user("the prompt cannot be read: {}", error.what());
  }
  if (tokens.empty()) return {first_token(*model.tokenizer)};
  const auto length = static_cast<std::int64_t>(tokens.size());
  const auto seen = Generator::window(length, model.plan.model);
  if (seen < length && !log::thread_muted()) {
    fmt::print(stderr,
               "shoal: warning: the prompt has {} tokens, but the model's block_size is {}; only the last {} "
               "are used\n",
               with_commas(length), with_commas(model.plan.model.block_size), with_commas(seen));
  }
  return tokens;
}

// Writes to standard output in whole characters.
class Terminal {
 public:
  void print(std::string_view bytes) { write(joiner_.push(bytes)); }
  void end_text() {
    write(joiner_.finish());
    if (!at_line_start_) write("\n");
  }

 private:
  void write(std::string_view text) {
    if (text.empty()) return;
    at_line_start_ = text.ends_with('\n');
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      fail("cannot write to standard output: {}", std::strerror(errno));
    }
  }

  Utf8Joiner joiner_;
  bool at_line_start_ = true;
};

using Print = std::function<void(std::string_view)>;

// Generates texts on this rank.
class Writer {
 public:
  Writer(const SampleArguments& options, const LoadedModel& model, std::string prompt,
         std::vector<std::int32_t> tokens)
      : options_(options),
        model_(model),
        prompt_(std::move(prompt)),
        tokens_(std::move(tokens)),
        generator_(model.runtime->backend(), model.runtime->engine(), model.plan.model,
                   model.plan.engine.compute) {}

  void write(std::int64_t sample, const Print& print) {
    StopFilter filter(options_.stop);
    print(prompt_);
    generator_.generate(tokens_, options_.sampling, sample, [&](std::int32_t token) {
      ++made_;
      if (token == model_.tokenizer->end_of_text()) return false;
      print(filter.push(model_.tokenizer->decode({&token, 1})));
      return !filter.stopped() && !InterruptGuard::requested();
    });
    print(filter.finish());
  }
  double made() const { return made_; }  // tokens

 private:
  const SampleArguments& options_;
  const LoadedModel& model_;
  std::string prompt_;
  std::vector<std::int32_t> tokens_;
  Generator generator_;
  double made_ = 0;
};

void print_sample(std::int64_t sample, const std::function<void(const Print&)>& write) {
  if (sample > 0) fmt::print("---------------\n");
  Terminal terminal;
  write([&](std::string_view bytes) { terminal.print(bytes); });
  terminal.end_text();
}

// Every rank generates a text; rank 0 prints its own while it is generated, then those of the others.
void write_round(Writer& writer, std::int64_t first, std::int64_t samples, Communicator& ranks) {
  const auto mine = first + ranks.rank();
  if (ranks.rank() == 0) {
    print_sample(mine, [&](const Print& print) { writer.write(mine, print); });
    for (int other = 1; other < ranks.size() && first + other < samples; ++other) {
      const auto text = receive_text(ranks, other);
      print_sample(first + other, [&](const Print& print) { print(text); });
    }
  } else if (mine < samples) {
    std::string text;
    writer.write(mine, [&](std::string_view bytes) { text += bytes; });
    send_text(ranks, text, 0);
  }
}

void sample(const SampleArguments& options, const std::string& prompt, const Config& config, World& world) {
  auto& ranks = world.ranks;
  require_agreement(ranks, facts_of(config));
  const auto alone = make_self_communicator();
  const auto model = load(options, config, *alone, world);
  std::vector<std::int32_t> tokens;
  all_or_none(ranks, [&] { tokens = encode(prompt, model); });
  auto settings = options;
  settings.sampling.vocab_size = model.tokenizer->vocab_size();
  Writer writer(settings, model, prompt, std::move(tokens));

  const InterruptGuard guard;
  const Stopwatch watch;
  bool stopped = false;
  double made = 0;
  for (std::int64_t first = 0; first < options.samples && !stopped; first += ranks.size()) {
    write_round(writer, first, options.samples, ranks);
    std::array<double, 2> sums = {writer.made(), InterruptGuard::requested() ? 1.0 : 0.0};
    ranks.all_reduce({sums.data(), DType::f64, {2}}).wait();
    made = sums[0];
    stopped = sums[1] > 0;
  }
  const double seconds = watch.seconds();
  if (ranks.rank() != 0) return;
  const auto from = is_hugging_face_folder(options.checkpoint)
                        ? "the weights in " + options.checkpoint
                        : fmt::format("{} after step {}", options.checkpoint, with_commas(model.step));
  fmt::print(stderr, "{}{} tokens in {}: {:.1f} tokens/s, from {}\n", stopped ? "stopped: " : "",
             with_commas(static_cast<std::int64_t>(made)), format_duration(seconds), made / seconds, from);
}

}  // namespace

void add_sample(CLI::App& app) {
  auto options = std::make_shared<SampleArguments>();
  auto& sampling = options->sampling;
  auto* command = add_command(
      app, "sample", "Generate text from a checkpoint: continue a prompt, token by token",
      {{"shoal sample --checkpoint runs/quickstart", "A new text, without a prompt"},
       {"shoal sample --checkpoint runs/quickstart --prompt \"ROMEO:\" --samples 3 --max-tokens 200",
        "Three continuations of a prompt"},
       {"shoal sample --checkpoint runs/quickstart/checkpoints/best --prompt \"JULIET:\" --stop \"ROMEO:\"",
        "The best checkpoint, stopped before ROMEO speaks"}});
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "A run, one of its checkpoints, or weights in Hugging Face's format (required)")
      ->option_text("DIR");
  auto* prompt =
      command->add_option("--prompt", options->prompt, "The text to continue")->option_text("TEXT");
  command->add_option("--prompt-file", options->prompt_file, "The prompt, from a file")
      ->option_text("FILE")
      ->excludes(prompt);
  command->add_option("--max-tokens", sampling.max_tokens, "Largest number of tokens to write")
      ->check(takes_integer(0, kMostInt64))
      ->capture_default_str();
  command
      ->add_option("--temperature", sampling.temperature,
                   "Below 1 for likelier, above 1 for bolder text; 0 always takes the most likely token")
      ->check(takes_number({.low = 0}))
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Choose among the k most likely tokens; 0 is off")
      ->check(takes_integer(0))
      ->capture_default_str();
  command
      ->add_option("--top-p", sampling.top_p,
                   "Choose among the most likely tokens that have this share of the probability; 1 is off")
      ->check(takes_number({.low = 0, .high = 1, .low_open = true}))
      ->capture_default_str();
  command
      ->add_option("--seed", sampling.seed, "Seed of the random choices: the same seed writes the same texts")
      ->check(takes_integer(0, kMostInt64))
      ->capture_default_str();
  command->add_option("--stop", options->stop, "Stop before this text")->option_text("TEXT");
  command->add_option("--samples", options->samples, "Number of texts to write")
      ->check(takes_integer(1, kMostInt64))
      ->capture_default_str();
  command->add_flag("--no-cache", options->no_cache,
                    "Recompute every position for every token: the same text, slowly");
  command
      ->add_option("--backend", options->backend, "cpu, cuda or reference (default: the run's train.backend)")
      ->option_text("NAME");
  command->add_option("--threads", options->threads, "Threads (default: the run's train.threads)")
      ->check(takes_integer(0))
      ->option_text("N");
  add_ranks(*command, options->ranks);
  add_settings(*command, options->settings);
  command->callback([options, command] {
    require_checkpoint(*command, options->checkpoint, options->settings);
    std::string text;
    const auto load = [&] {
      options->sampling.cache = !options->no_cache;
      validate(options->sampling);
      text = read_prompt(*options);
      return load_config(*options);
    };
    with_ranks(options->ranks, load,
               [&](const Config& config, World& world) { sample(*options, text, config, world); });
  });
}

}  // namespace shoal::cli
