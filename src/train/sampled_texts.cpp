#include "train/sampled_texts.h"

#include "core/error.h"
#include "generate/prompt.h"
#include "generate/text_stream.h"

namespace shoal {

SampledTexts::SampledTexts(const Config& config, const RunPlan& plan, Runtime& runtime,
                           const Tokenizer& tokenizer)
    : tokenizer_(tokenizer),
      follows_(runtime.mesh().tensor().rank() > 0),
      options_{.seed = static_cast<std::uint64_t>(config.run.seed),
               .max_tokens = config.eval.sample_tokens,
               .vocab_size = tokenizer.vocab_size()},
      texts_(config.eval.samples),
      generator_(make_generator(runtime, plan, plan.sampled_texts)) {
  try {
    tokenizer.encode(config.eval.sample_prompt, prompt_);
  } catch (const UserError& error) {
    fail_user("eval.sample_prompt cannot be read: {}", error.what());
  }
  if (prompt_.empty()) prompt_ = {first_token(tokenizer)};
}

std::vector<std::string> SampledTexts::write() {
  if (follows_) {
    generator_.follow();
    return {};
  }
  std::vector<std::vector<std::int32_t>> made(static_cast<std::size_t>(texts_));
  for (int next = 0;;) {
    for (; next < texts_ && generator_.free_places() > 0; ++next) {
      generator_.begin(prompt_, options_, next, [&, next](const GeneratedToken& token) {
        if (token.id == tokenizer_.end_of_text()) return false;
        made[static_cast<std::size_t>(next)].push_back(token.id);
        return true;
      });
    }
    if (generator_.step() == 0 && next == texts_) break;
  }
  generator_.dismiss();
  std::vector<std::string> texts;
  for (auto& tokens : made) {
    if (prompt_.front() != tokenizer_.end_of_text())
      tokens.insert(tokens.begin(), prompt_.begin(), prompt_.end());
    Utf8Joiner joiner;
    texts.push_back(joiner.push(tokenizer_.decode(tokens)));
    texts.back() += joiner.finish();
  }
  return texts;
}

}  // namespace shoal
