#include "data/token_pipeline.h"

#include "core/error.h"

namespace shoal {
namespace {
constexpr std::size_t kBatchBytes = 1 << 20;
}

TokenPipeline::TokenPipeline(const Tokenizer& tokenizer, SplitWriter& train, SplitWriter& val, int threads)
    : tokenizer_(tokenizer), writers_{&train, &val}, most_under_way_(2 * static_cast<std::size_t>(threads)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

TokenPipeline::~TokenPipeline() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

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
  while (!under_way_.empty()) write_front();
}

void TokenPipeline::submit() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(current_.get());
  }
  changed_.notify_all();
  under_way_.push_back(std::move(current_));
  current_ = std::make_unique<Batch>();
  while (under_way_.size() > most_under_way_) write_front();
}

void TokenPipeline::write_front() {
  auto& batch = *under_way_.front();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batch.done; });
  }
  if (batch.error) std::rethrow_exception(batch.error);
  for (std::size_t split = 0; split < 2; ++split) writers_[split]->append(batch.ids[split]);
  under_way_.pop_front();
}

void TokenPipeline::work() {
  for (;;) {
    Batch* batch = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      batch = waiting_.front();
      waiting_.pop_front();
    }
    try {
      tokenize(*batch);
    } catch (...) {
      batch->error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      batch->done = true;
    }
    changed_.notify_all();
  }
}

void TokenPipeline::tokenize(Batch& batch) const {
  for (const auto& segment : batch.segments) {
    auto& ids = batch.ids[static_cast<std::size_t>(segment.split)];
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
}

}  // namespace shoal
