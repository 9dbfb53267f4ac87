// Texts that a run's model writes at its evaluations (eval.samples).
#pragma once

#include <string>
#include <vector>

#include "config/plan.h"
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "train/runtime.h"

namespace shoal {

class SampledTexts {
 public:
  // Takes the memory of the plan's sampled_texts. The tokenizer and the runtime must outlive this. Throws
  // UserError for a prompt that the tokenizer cannot read.
  SampledTexts(const Config& config, const RunPlan& plan, Runtime& runtime, const Tokenizer& tokenizer);

  // The texts with the prompt in front. They depend on run.seed and the model alone, so that those of two
  // evaluations compare. Collective over the mesh; every rank but the others of a tensor-parallel group has
  // them.
  std::vector<std::string> write();

 private:
  const Tokenizer& tokenizer_;
  bool follows_;  // another tensor rank
  SampleOptions options_;
  std::vector<std::int32_t> prompt_;
  int texts_;
  Generator generator_;
};

}  // namespace shoal
