#include "cli/sample_writer.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/text.h"
#include "generate/prompt.h"
#include "train/remedies.h"

namespace shoal::cli {

std::vector<std::int32_t> encode_prompt(const std::string& prompt, const LoadedModel& model,
                                        const SampleArguments& options) {
  std::vector<std::int32_t> tokens;
  try {
    model.tokenizer->encode(prompt, tokens);
  } catch (const UserError& error) {
    fail_user("the prompt cannot be read: {}", error.what());
  }
  if (tokens.empty()) return {first_token(*model.tokenizer)};
  const auto length = static_cast<std::int64_t>(tokens.size());
  const auto seen = Generator::window(length, model.plan.model);
  if (seen < length && options.beam.beams == 0 && !log::thread_muted()) {
    fmt::print(stderr,
               "shoal: warning: the prompt has {} tokens, but the model's block_size is {}; only the last {} "
               "are used\n",
               with_commas(length), with_commas(model.plan.model.block_size), with_commas(seen));
  }
  return tokens;
}

Prompts::Prompts(const SampleArguments& options, const std::string& text, const Config& config,
                 const LoadedModel& model)
    : options_(options), tokenizer_(*model.tokenizer) {
  if (!options.prompts.empty()) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      lines_.push_back({.text = line, .tokens = encode_prompt(line, model, options), .reference = {}});
    }
    if (lines_.empty()) fail_user("--prompts {}: the file has no line", options.prompts);
    if (options.samples > kMostInt64 / std::ssize(lines_))
      fail_user("--samples {} of each of {} prompts are too many", options.samples, lines_.size());
    return;
  }
  if (options.from_split.empty()) {
    same_ = {.text = text, .tokens = encode_prompt(text, model, options), .reference = {}};
    return;
  }
  data_.emplace(with_remedy([&] {
    return Dataset(config.data.sources().begin()->first,
                   {.truncate = config.data.truncate, .vocab_size = model.plan.model.vocab_size});
  }));
  const auto vocab_size = model.plan.model.vocab_size;
  refuse_larger_vocabulary(*data_, vocab_size, "take prompts from");
  warn_of_other_tokenizer(*data_, vocab_size, model.tokenizer.get());
  const auto& split = data_->split(options.from_split);
  const auto prompt = options.prompt_tokens, most = options.sampling.max_tokens;
  if (most >= split.size() - prompt) {  // their sum may be beyond an int64
    fail_user(
        "{} has {} tokens, but --prompt-tokens {} and --max-tokens {} together must be fewer; lower one of "
        "them",
        split.path().string(), with_commas(split.size()), prompt, most);
  }
  sampler_.emplace(split, options.from_split, prompt + most, options.sampling.seed);
}

SamplePrompt Prompts::operator()(std::int64_t sample) const {
  if (!lines_.empty()) return lines_[static_cast<std::size_t>(sample / options_.samples)];
  if (!sampler_) return same_;
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(options_.prompt_tokens + options_.sampling.max_tokens));
  data_->split(options_.from_split).copy(sampler_->start(sample), tokens);
  const auto prompt = std::span(tokens).first(static_cast<std::size_t>(options_.prompt_tokens));
  return {.text = tokenizer_.decode(prompt),
          .tokens = {prompt.begin(), prompt.end()},
          .reference = tokenizer_.decode(std::span(tokens).subspan(prompt.size()))};
}

SampleWriter::SampleWriter(const SampleArguments& options, const LoadedModel& model, int texts)
    : options_(options),
      tokenizer_(*model.tokenizer),
      texts_(texts),
      generator_(
          make_generator(*model.runtime, model.plan, options.beam.beams > 0 ? options.beam.beams : texts)) {}

std::vector<Sample> SampleWriter::write(const std::vector<Numbered>& numbers,
                                        const std::vector<SamplePrompt>& prompts, const Print& print_first) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    samples.push_back({.index = numbers[i].sample, .prompt = prompts[i].text});
  if (options_.beam.beams > 0) {
    search(prompts, print_first, samples, numbers);
  } else {
    sample(prompts, print_first, samples, numbers);
  }
  return samples;
}

void SampleWriter::sample(const std::vector<SamplePrompt>& prompts, const Print& print_first,
                          std::vector<Sample>& samples, const std::vector<Numbered>& numbers) {
  std::vector<StopFilter> filters(numbers.size(), StopFilter(options_.stops));
  const auto add = [&](std::size_t i, const std::string& bytes) {
    samples[i].text += bytes;
    if (i == 0) print_first(bytes);
  };
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    generator_.begin(prompts[i].tokens, options_.sampling, numbers[i].index,
                     [&, i](const GeneratedToken& token) {
                       ++made_;
                       samples[i].tokens.push_back(token);
                       samples[i].finished = token.id == tokenizer_.end_of_text();
                       if (samples[i].finished) return false;
                       add(i, filters[i].push(tokenizer_.decode({&token.id, 1})));
                       samples[i].finished = filters[i].stopped();
                       return !filters[i].stopped() && !InterruptGuard::requested();
                     });
  }
  while (generator_.step() > 0) {
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) add(i, filters[i].finish());
}

// Sample k of a prompt is the k-th best text of one search.
void SampleWriter::search(const std::vector<SamplePrompt>& prompts, const Print& print_first,
                          std::vector<Sample>& samples, const std::vector<Numbered>& numbers) {
  auto options = options_.beam;
  options.max_tokens = options_.sampling.max_tokens;
  options.vocab_size = options_.sampling.vocab_size;
  options.end_of_text = tokenizer_.end_of_text().value_or(-1);
  std::vector<BeamText> found;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i == 0 || prompts[i].tokens != prompts[i - 1].tokens)
      found = generator_.search(prompts[i].tokens, options,
                                [] { return InterruptGuard::requested() != nullptr; });
    const auto number = static_cast<std::size_t>(numbers[i].index);
    if (number >= found.size()) fail_user("the search found {} texts; ask for fewer --samples", found.size());
    auto text = found[number];
    samples[i].finished = text.ended;
    samples[i].score = text.score;
    for (const auto id : text.tokens) samples[i].tokens.push_back({.id = id});
    if (text.ended) text.tokens.pop_back();
    samples[i].text = tokenizer_.decode(text.tokens);
    made_ += static_cast<double>(samples[i].tokens.size());
    if (i == 0) print_first(samples[i].text);
  }
}

void write_round(SampleWriter& writer, const Prompts& prompts, const SampleArguments& options,
                 const Tokenizer& tokenizer, std::int64_t first, Communicator& ranks) {
  const std::int64_t last = std::min(prompts.samples(), first + std::int64_t{ranks.size()} * writer.texts());
  std::vector<SampleWriter::Numbered> mine;
  std::vector<SamplePrompt> my_prompts;
  for (std::int64_t i = first + ranks.rank(); i < last; i += ranks.size()) {
    mine.push_back({i, prompts.index(i)});
    my_prompts.push_back(prompts(i));
  }
  const auto whole = [&](const Sample& sample, const SamplePrompt& prompt) {
    if (options.json) return to_json(sample, tokenizer) + "\n";
    std::string text;
    const Print add = [&](std::string_view bytes) { text += bytes; };
    begin_text(prompt, add);
    add(sample.text);
    end_text(prompt, add);
    return text;
  };
  if (ranks.rank() != 0) {
    const auto samples = writer.write(mine, my_prompts, [](std::string_view) {});
    for (std::size_t i = 0; i < samples.size(); ++i) send_text(ranks, whole(samples[i], my_prompts[i]), 0);
    return;
  }
  Terminal terminal;
  const Print print = [&](std::string_view bytes) { terminal.print(bytes); };
  const bool live = !options.json;
  const auto separate = [&](std::int64_t sample) {
    if (sample > 0 && live) fmt::print("---------------\n");
  };
  separate(first);
  if (live) begin_text(my_prompts.front(), print);
  const auto samples = writer.write(
      mine, my_prompts, live ? print : [](std::string_view) {});
  live ? end_text(my_prompts.front(), print) : print(whole(samples.front(), my_prompts.front()));
  terminal.end_text();
  for (std::int64_t i = first + 1; i < last; ++i) {
    const auto owner = static_cast<int>((i - first) % ranks.size());
    const auto at = static_cast<std::size_t>((i - first) / ranks.size());
    separate(i);
    print(owner == 0 ? whole(samples[at], my_prompts[at]) : receive_text(ranks, owner));
    terminal.end_text();
  }
}

}  // namespace shoal::cli
