// shoal sample: text from a checkpoint, printed as it is made.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "cli/command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"
#include "generate/generator.h"
#include "generate/text_stream.h"
#include "train/interrupt.h"
#include "train/model_io.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string checkpoint, prompt, prompt_file, stop, backend, threads;
  std::int64_t samples = 1;
  bool no_cache = false;
  SampleOptions sampling;
  std::vector<std::string> settings;
};

std::string read_prompt(const Options& options) {
  if (options.prompt_file.empty()) return options.prompt;
  if (fs::is_directory(options.prompt_file)) {
    fail_user("--prompt-file {} is a folder; give a file", options.prompt_file);
  }
  std::ifstream stream(options.prompt_file, std::ios::binary);
  if (!stream) fail_user("cannot read the prompt file {}: {}", options.prompt_file, std::strerror(errno));
  return {std::istreambuf_iterator<char>(stream), {}};
}

LoadedModel load(const Options& options) {
  auto settings = options.settings;
  if (!options.backend.empty()) settings.push_back("train.backend=" + options.backend);
  if (!options.threads.empty()) settings.push_back("train.threads=" + options.threads);
  auto model = load_model(options.checkpoint, settings);
  if (!model.tokenizer) {
    fail_user("{} was trained on data without a meta.json, so there is no tokenizer to write text with",
              options.checkpoint);
  }
  return model;
}

// Where a text begins when there is no prompt: after the end of another one; failing that, on a new line.
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
  const auto seen = Generator::window(length, model.gpt);
  if (seen < length) {
    fmt::print(stderr,
               "shoal: warning: the prompt has {} tokens and the model's block {}; it sees the last {}\n",
               with_commas(length), with_commas(model.gpt.block_size), with_commas(seen));
  }
  return tokens;
}

// Standard output, in whole characters.
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

// Prints one sample and returns how many tokens were made.
std::int64_t print_sample(Generator& generator, const LoadedModel& model, const Options& options,
                          const std::string& prompt, std::span<const std::int32_t> tokens,
                          std::int64_t sample) {
  Terminal terminal;
  StopFilter filter(options.stop);
  std::int64_t made = 0;
  terminal.print(prompt);
  generator.generate(tokens, options.sampling, sample, [&](std::int32_t token) {
    ++made;
    if (token == model.tokenizer->end_of_text()) return false;
    terminal.print(filter.push(model.tokenizer->decode({&token, 1})));
    return !filter.stopped() && !InterruptGuard::requested();
  });
  terminal.print(filter.finish());
  terminal.end_text();
  return made;
}

void sample(Options options) {
  options.sampling.cache = !options.no_cache;
  validate(options.sampling);
  if (options.samples < 1) fail_user("cannot write {} samples; give 1 or more", options.samples);
  const auto prompt = read_prompt(options);
  const auto model = load(options);
  options.sampling.vocab_size = model.tokenizer->vocab_size();
  const auto tokens = encode(prompt, model);
  Generator generator(*model.backend, *model.engine, model.gpt, model.compute);

  const InterruptGuard guard;
  const Stopwatch watch;
  std::int64_t made = 0;
  for (std::int64_t i = 0; i < options.samples && !InterruptGuard::requested(); ++i) {
    if (i > 0) fmt::print("---------------\n");
    made += print_sample(generator, model, options, prompt, tokens, i);
  }
  const double seconds = watch.seconds();
  fmt::print(stderr, "{}{} tokens in {}: {:.1f} tokens/s, from {} after step {}\n",
             InterruptGuard::requested() ? "stopped: " : "", with_commas(made), format_duration(seconds),
             static_cast<double>(made) / seconds, options.checkpoint, with_commas(model.step));
}

}  // namespace

void add_sample(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto& sampling = options->sampling;
  auto* command = add_command(
      app, "sample", "Let a model write: continue a prompt, token by token",
      {{"shoal sample --checkpoint runs/quickstart", "A text from its beginning"},
       {"shoal sample --checkpoint runs/quickstart --prompt \"ROMEO:\" --samples 3 --max-tokens 200",
        "Three continuations of a prompt"},
       {"shoal sample --checkpoint runs/quickstart/checkpoints/best --prompt \"JULIET:\" --stop \"ROMEO:\"",
        "The best checkpoint, until it gives the word to somebody"}});
  command->add_option("--checkpoint", options->checkpoint, "A run, or one of its checkpoints")
      ->required()
      ->option_text("DIR");
  auto* prompt =
      command->add_option("--prompt", options->prompt, "The text to continue")->option_text("TEXT");
  command->add_option("--prompt-file", options->prompt_file, "The same, from a file")
      ->option_text("FILE")
      ->excludes(prompt);
  command->add_option("--max-tokens", sampling.max_tokens, "Tokens to write at most")->capture_default_str();
  command
      ->add_option("--temperature", sampling.temperature,
                   "Below 1 for likelier, above 1 for bolder text; 0 always takes the most likely token")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "Choose among the k most likely tokens; 0 is off")
      ->capture_default_str();
  command
      ->add_option("--top-p", sampling.top_p,
                   "Choose among the most likely tokens that hold this share of the probability; 1 is off")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "The same seed writes the same texts")->capture_default_str();
  command->add_option("--stop", options->stop, "End before this text")->option_text("TEXT");
  command->add_option("--samples", options->samples, "How many texts to write")->capture_default_str();
  command->add_flag("--no-cache", options->no_cache,
                    "Compute every position again for every token: the same text, slowly");
  command->add_option("--backend", options->backend, "cpu or reference; else the run's train.backend")
      ->option_text("NAME");
  command->add_option("--threads", options->threads, "Else the run's train.threads")->option_text("N");
  add_settings(*command, options->settings);
  command->callback([options] { sample(*options); });
}

}  // namespace shoal::cli
