// The texts of `shoal sample`: their prompts, and writing them on several ranks.
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "cli/sample_output.h"
#include "cli/text_model.h"
#include "data/batch_sampler.h"
#include "data/dataset.h"
#include "generate/beam_search.h"
#include "train/model_io.h"

namespace shoal::cli {

struct SampleArguments : TextModelArguments {
  std::string prompt, prompt_file, prompts, from_split;
  std::vector<std::string> stops;
  std::int64_t samples = 1;  // of each prompt
  std::int64_t batch = 8, prompt_tokens = 20;
  BeamOptions beam = {.beams = 0};  // 0: no beam search
  int ranks = 0;
  bool no_cache = false, json = false, interactive = false;
  SampleOptions sampling;
};

// The tokens of a prompt; of an empty one, the end-of-text token or a newline. Warns where the model does not
// see all of it; not with --beams, which refuses that.
std::vector<std::int32_t> encode_prompt(const std::string& prompt, const LoadedModel& model,
                                        const SampleArguments& options);

// The prompts of all samples.
class Prompts {
 public:
  // `text` is the prompt of every sample, or has one in each line; unless they come from the data. Throws
  // UserError for a text without lines.
  Prompts(const SampleArguments& options, const std::string& text, const Config& config,
          const LoadedModel& model);
  // Samples of one prompt follow each other.
  SamplePrompt operator()(std::int64_t sample) const;
  std::int64_t samples() const { return options_.samples * std::max<std::int64_t>(1, std::ssize(lines_)); }
  // The number of a sample among those of its prompt, which its random choices depend on.
  std::int64_t index(std::int64_t sample) const { return sample % options_.samples; }

 private:
  const SampleArguments& options_;
  const Tokenizer& tokenizer_;
  SamplePrompt same_;
  std::vector<SamplePrompt> lines_;
  std::optional<Dataset> data_;
  std::optional<EvaluationSampler> sampler_;
};

// Generates texts on this rank, several at a time.
class SampleWriter {
 public:
  // Generates so many texts together.
  SampleWriter(const SampleArguments& options, const LoadedModel& model, int texts);
  int texts() const { return texts_; }
  // See Generator.
  void follow() { generator_.follow(); }
  void dismiss() { generator_.dismiss(); }

  // A sample, and its number among those of its prompt.
  struct Numbered {
    std::int64_t sample = 0, index = 0;
  };
  // Returns all of the samples; hands on the first one's text as it is generated.
  std::vector<Sample> write(const std::vector<Numbered>& numbers, const std::vector<SamplePrompt>& prompts,
                            const Print& print_first);
  double made() const { return made_; }  // tokens

 private:
  void sample(const std::vector<SamplePrompt>& prompts, const Print& print_first,
              std::vector<Sample>& samples, const std::vector<Numbered>& numbers);
  void search(const std::vector<SamplePrompt>& prompts, const Print& print_first,
              std::vector<Sample>& samples, const std::vector<Numbered>& numbers);
  const SampleArguments& options_;
  const Tokenizer& tokenizer_;
  int texts_;
  Generator generator_;
  double made_ = 0;
};

// Samples [first, the next round's first), which are assigned to the ranks in turn. Rank 0 prints its first
// one while it is generated, then all others in order.
void write_round(SampleWriter& writer, const Prompts& prompts, const SampleArguments& options,
                 const Tokenizer& tokenizer, std::int64_t first, Communicator& ranks);

}  // namespace shoal::cli
