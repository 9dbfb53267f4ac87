#include "data/token_pipeline.h"

#include "core/error.h"

namespace shoal {
namespace {
constexpr std::size_t kBatchBytes = 1 << 20;
}

TokenPipeline::TokenPipeline(const Tokenizer& tokenizer, std::span<SplitWriter> splits, int threads)
    : tokenizer_(tokenizer), jobs_(threads, [splits](Ids&& ids) {
        for (std::size_t i = 0; i < splits.size(); ++i) splits[i].append(ids.of[i]);
      }) {}

void TokenPipeline::add(std::string_view text, Split split, const std::string& name) {
  if (text.empty()) return;
  const auto begin = current_->text.size();
  current_->text += text;
  current_->segments.push_back({begin, current_->text.size(), split, false, name});
  if (current_->text.size() >= kBatchBytes) submit();
}

void TokenPipeline::add_end_of_text(Split split) {
  const auto at = current_->text.size();
  current_->segments.push_back({at, at, split, true, {}});
}

void TokenPipeline::finish() {
  submit();
  jobs_.finish();
}

void TokenPipeline::submit() {
  const auto weight = current_->text.size();
  jobs_.submit([this, batch = std::move(current_)](const auto& emit) { emit(tokenize(*batch)); }, weight);
  current_ = std::make_shared<Batch>();
}

TokenPipeline::Ids TokenPipeline::tokenize(const Batch& batch) const {
  Ids result;
  for (const auto& segment : batch.segments) {
    auto& ids = result.of[static_cast<std::size_t>(segment.split)];
    if (segment.end_of_text) {
      ids.push_back(tokenizer_.end_of_text().value());
      continue;
    }
    try {
      tokenizer_.encode(std::string_view(batch.text).substr(segment.begin, segment.end - segment.begin), ids);
    } catch (const UserError& error) {
      fail_user("{}: {}", segment.name, error.what());
    }
  }
  return result;
}

}  // namespace shoal
