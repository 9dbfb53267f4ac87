#include "data/mixture.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"

namespace shoal {

Mixture::Mixture(const std::map<std::string, double>& weights, const DatasetOptions& options) {
  for (const auto& [dir, weight] : weights) sources_.push_back({weight, Dataset(dir, options)});
  for (const auto& [weight, data] : sources_) {
    if (data.vocab_size() != vocab_size()) {
      fail_user("{} has a vocabulary of {}, {} one of {}; prepare both with one tokenizer",
                first().dir().string(), with_commas(vocab_size()), data.dir().string(),
                with_commas(data.vocab_size()));
    }
    if (data.tokenizer_text() != tokenizer_text()) {
      fail_user("{} and {} were prepared with different tokenizers; prepare both with one",
                first().dir().string(), data.dir().string());
    }
  }
}

bool Mixture::has_split(const std::string& name) const {
  return std::ranges::all_of(sources_, [&](const Source& source) { return source.data.has_split(name); });
}

std::int64_t Mixture::tokens(const std::string& split) const {
  std::int64_t tokens = 0;
  for (const auto& [weight, data] : sources_) tokens += data.split(split).size();
  return tokens;
}

std::vector<WeightedFile> Mixture::split(const std::string& name) const {
  std::vector<WeightedFile> files;
  for (const auto& [weight, data] : sources_) files.push_back({&data.split(name), weight});
  return files;
}

std::optional<double> Mixture::entropy_per_token() const {
  return is_mixed() ? std::nullopt : first().entropy_per_token();
}

void Mixture::verify() const {
  for (const auto& [weight, data] : sources_) data.verify();
}

std::string Mixture::description() const {
  if (!is_mixed()) return first().dir().string();
  std::string text;
  for (const auto& [weight, data] : sources_) {
    text += fmt::format("{}{} {:.3g} %", text.empty() ? "" : ", ", data.dir().string(), 100 * weight);
  }
  return text;
}

}  // namespace shoal
