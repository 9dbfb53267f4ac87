// shoal sample: generates text from a checkpoint and prints it token by token.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>

#include "cli/checkpoint_option.h"
#include "cli/sample_writer.h"
#include "cli/text_model.h"
#include "config/pretrained.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/text.h"
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "generate/text_stream.h"
#include "launch/ranks.h"
#include "train/facts.h"
#include "train/model_io.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

std::string read_prompt(const SampleArguments& options) {
  const auto& file = options.prompts.empty() ? options.prompt_file : options.prompts;
  if (file.empty()) return options.prompt;
  if (fs::is_directory(file)) {
    fail_user("{} {} is a folder; give a file", options.prompts.empty() ? "--prompt-file" : "--prompts",
              file);
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail_user("cannot read the prompt file {}: {}", file, std::strerror(errno));
  return read_rest(stream, file);
}

// Lines of standard input. A signal ends the wait for one.
class InputLines {
 public:
  // Returns false at the end, or after a signal.
  bool next(std::string& line) {
    while (!InterruptGuard::requested()) {
      const auto end = text_.find('\n');
      if (end != text_.npos || (ended_ && !text_.empty())) {
        line = text_.substr(0, end);
        text_.erase(0, end == text_.npos ? end : end + 1);
        return true;
      }
      if (ended_) return false;
      read();
    }
    return false;
  }

 private:
  void read() {
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&input, 1, 200) <= 0) return;
    std::array<char, 4096> bytes;
    const auto count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count > 0) text_.append(bytes.data(), static_cast<std::size_t>(count));
    ended_ = count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
  }

  std::string text_;
  bool ended_ = false;
};

// Each line of standard input is a prompt. Draws differ from line to line; a search gives its best text.
void converse(SampleWriter& writer, const SampleArguments& options, const LoadedModel& model) {
  const bool person = isatty(STDIN_FILENO) != 0;
  InputLines lines;
  std::int64_t index = 0;
  for (std::string line;; ++index) {
    if (person) fmt::print(stderr, "> ");
    if (!lines.next(line)) break;
    if (line.ends_with('\r')) line.pop_back();
    SamplePrompt prompt{.text = line, .tokens = {}, .reference = {}};
    try {
      prompt.tokens = encode_prompt(line, model, options);
    } catch (const UserError& error) {
      if (!person) throw;
      fmt::print(stderr, "{}\n", error.what());
      continue;
    }
    Terminal terminal;
    writer.write({{index, options.beam.beams > 0 ? 0 : index}}, {prompt},
                 [&](std::string_view bytes) { terminal.print(bytes); });
    terminal.end_text();
  }
  if (person) fmt::print(stderr, "\n");
}

void sample(const SampleArguments& options, const std::string& text, const Config& config, World& world) {
  auto& ranks = world.ranks;
  require_agreement(ranks, facts_of(config));
  // Groups of tensor ranks share a model; the first rank of each writes texts.
  const int tensor = config.parallel.tensor;
  if (options.interactive && ranks.size() > tensor) {
    fail_user(
        "--interactive generates one text at a time; start {}",
        tensor == 1 ? "one rank, without --ranks" : fmt::format("{} ranks, as parallel.tensor says", tensor));
  }
  const auto group = ranks.split([&](int rank) { return Communicator::SplitKey{rank / tensor, rank}; });
  const auto writers = ranks.split([&](int rank) { return Communicator::SplitKey{rank % tensor, rank}; });
  const auto model = load_text_model(options, config, *group, world);
  auto settings = options;
  settings.sampling.vocab_size = model.tokenizer->vocab_size();
  std::optional<Prompts> prompts;
  all_or_none(ranks, [&] { prompts.emplace(settings, text, config, model); });
  const int texts = static_cast<int>(std::min(options.batch, prompts->samples()));
  SampleWriter writer(settings, model, texts);

  const InterruptGuard guard;
  if (group->rank() > 0) return writer.follow();
  const Stopwatch watch;
  bool stopped = false;
  double made = 0;
  if (options.interactive) {
    converse(writer, settings, model);
    made = writer.made();
  }
  for (std::int64_t first = 0; first < prompts->samples() && !stopped && !options.interactive;
       first += std::int64_t{writers->size()} * writer.texts()) {
    write_round(writer, *prompts, settings, *model.tokenizer, first, *writers);
    std::array<double, 2> sums = {writer.made(), InterruptGuard::requested() ? 1.0 : 0.0};
    writers->all_reduce({sums.data(), DType::f64, {2}}).wait();
    made = sums[0];
    stopped = sums[1] > 0;
  }
  writer.dismiss();
  const double seconds = watch.seconds();
  if (ranks.rank() != 0) return;
  const auto from = weights_at(options.checkpoint)
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
        "The best checkpoint, stopped before ROMEO speaks"},
       {"shoal sample --checkpoint runs/quickstart --from-split val --prompt-tokens 20 --samples 3",
        "Beginnings from the data, their continuations, and how the data go on"},
       {"shoal sample --checkpoint runs/gpt2 --prompt \"The sea\" --max-tokens 40 --beams 4",
        "The likeliest text that a beam search finds"},
       {"shoal sample --checkpoint runs/quickstart --interactive", "Each line that you type is a prompt"},
       {"shoal sample --checkpoint runs/gpt2 --ranks 2 parallel.tensor=2", "Two ranks share the model"}});
  add_checkpoint_option(*command, options->checkpoint);
  auto* prompt =
      command->add_option("--prompt", options->prompt, "The text to continue")->option_text("TEXT");
  auto* prompt_file = command->add_option("--prompt-file", options->prompt_file, "The prompt, from a file")
                          ->option_text("FILE")
                          ->excludes(prompt);
  auto* prompts = command
                      ->add_option("--prompts", options->prompts,
                                   "A file with a prompt in each line; all are continued together")
                      ->option_text("FILE")
                      ->excludes(prompt, prompt_file);
  auto* from_split =
      command
          ->add_option("--from-split", options->from_split,
                       "Prompts from random places of the data: train, val or test of data.dir; "
                       "prints PROMPT, OUTPUT and REFERENCE")
          ->option_text("SPLIT")
          ->check(takes_one_of({"train", "val", "test"}))
          ->excludes(prompt, prompt_file, prompts);
  command->add_option("--prompt-tokens", options->prompt_tokens, "With --from-split: tokens of a prompt")
      ->check(takes_integer(1, 1 << 24))
      ->option_text("N")
      ->default_str("20")
      ->needs(from_split);
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
      ->add_option(
          "--min-p", sampling.min_p,
          "Choose among tokens that are at least this share as likely as the most likely one; 0 is off")
      ->check(takes_number({.low = 0, .high = 1}))
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", sampling.repetition_penalty,
                   "Above 1: tokens of the prompt and the text become less likely; 1 is off")
      ->check(takes_number({.low = kLeastRepetitionPenalty, .high = kMostRepetitionPenalty}))
      ->capture_default_str();
  command
      ->add_option("--presence-penalty", sampling.presence_penalty,
                   "Subtracted from the logit of a token that was generated; 0 is off")
      ->check(takes_number({.low = -kMostPenalty, .high = kMostPenalty}))
      ->capture_default_str();
  command
      ->add_option("--frequency-penalty", sampling.frequency_penalty,
                   "Subtracted for each time that a token was generated; 0 is off")
      ->check(takes_number({.low = -kMostPenalty, .high = kMostPenalty}))
      ->capture_default_str();
  command
      ->add_option("--seed", sampling.seed, "Seed of the random choices: the same seed writes the same texts")
      ->check(takes_integer(0, kMostInt64))
      ->capture_default_str();
  command->add_option("--stop", options->stops, "Stop before this text; may be given several times")
      ->option_text("TEXT")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);  // the next word may be a setting
  auto* beams =
      command
          ->add_option(
              "--beams", options->beam.beams,
              "Beam search with N beams instead of random choice; --samples K prints the K best texts")
          ->check(takes_integer(1, 4096))
          ->option_text("N")
          ->excludes("--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty",
                     "--presence-penalty", "--frequency-penalty", "--stop", "--seed");
  command
      ->add_option("--length-penalty", options->beam.length_penalty,
                   "With --beams: a text's score is its logprob over its length to this power")
      ->check(takes_number({}))
      ->capture_default_str()
      ->needs(beams);
  command->add_option("--samples", options->samples, "Number of texts to write, of each prompt")
      ->check(takes_integer(1, kMostInt64))
      ->capture_default_str();
  command
      ->add_option("--batch", options->batch,
                   "Texts that a rank generates together; a text is the same in any batch")
      ->check(takes_integer(1, 4096))
      ->option_text("N")
      ->default_str("8");
  auto* json = command->add_flag("--json", options->json,
                                 "Print a JSON object per text: prompt, text, reason of the end, tokens");
  command
      ->add_option("--logprobs", sampling.logprobs,
                   "With --json: the logprob of each token, and of the N most likely ones in its place")
      ->check(takes_integer(0, 1000))
      ->option_text("N")
      ->needs(json)
      ->excludes(beams);
  command->add_flag("--interactive", options->interactive, "Continue each line of standard input")
      ->excludes(prompt, prompt_file, prompts, from_split, json, "--samples");
  command
      ->add_flag("--no-cache", options->no_cache,
                 "Recompute every position for every token: the same text, slowly")
      ->excludes(beams);
  add_text_backend(*command, *options);
  add_ranks(*command, options->ranks);
  add_settings(*command, options->settings);
  command->callback([options, command] {
    require_checkpoint(*command, options->checkpoint, options->settings);
    std::string text;
    const auto load = [&] {
      options->sampling.cache = !options->no_cache;
      validate(options->sampling);
      if (options->beam.beams > 0 && options->samples > options->beam.beams) {
        fail_user("--beams {} finds as many texts; ask for as many --samples at most, or for more beams",
                  options->beam.beams);
      }
      text = read_prompt(*options);
      return load_text_config(*options);
    };
    with_ranks(options->ranks, load,
               [&](const Config& config, World& world) { sample(*options, text, config, world); });
  });
}

}  // namespace shoal::cli
