#include "generate/penalties.h"

namespace shoal {

Penalties::Penalties(const SampleOptions& options, std::int64_t vocab_size,
                     std::span<const std::int32_t> prompt)
    : repetition_(options.repetition_penalty),
      presence_(options.presence_penalty),
      frequency_(options.frequency_penalty) {
  if (repetition_ == 1 && presence_ == 0 && frequency_ == 0) return;
  generated_.resize(static_cast<std::size_t>(vocab_size));
  seen_.resize(generated_.size());
  for (const auto token : prompt) seen_[static_cast<std::size_t>(token)] = true;
}

void Penalties::add(std::int32_t token) {
  if (generated_.empty()) return;
  ++generated_[static_cast<std::size_t>(token)];
  seen_[static_cast<std::size_t>(token)] = true;
}

std::span<const float> Penalties::apply(std::span<const float> logits) {
  if (generated_.empty()) return logits;
  changed_.assign(logits.begin(), logits.end());
  for (std::size_t token = 0; token < changed_.size(); ++token) {
    if (!seen_[token]) continue;
    double logit = changed_[token];
    logit = logit > 0 ? logit / repetition_ : logit * repetition_;
    if (generated_[token] > 0) logit -= presence_ + frequency_ * generated_[token];
    changed_[token] = static_cast<float>(logit);
  }
  return changed_;
}

}  // namespace shoal
