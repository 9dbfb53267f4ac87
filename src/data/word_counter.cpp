#include "data/word_counter.h"

#include <utility>

namespace shoal {
namespace {

constexpr std::size_t kCountedBytes = 1 << 21;  // of a batch: large, so that merging tables costs little

}  // namespace

WordCounter::WordCounter(int threads) : jobs_(threads, [this](WordTable&& words) { words_.add(words); }) {}

void WordCounter::add(std::string_view text) {
  current_->text += text;
  current_->ends.push_back(current_->text.size());
  if (current_->text.size() >= kCountedBytes) submit();
}

WordTable WordCounter::finish() {
  submit();
  jobs_.finish();
  return std::move(words_);
}

void WordCounter::submit() {
  const auto weight = current_->text.size();
  jobs_.submit([this, batch = std::move(current_)](const auto& emit) { emit(count(*batch)); }, weight);
  current_ = std::make_shared<Batch>();
}

WordTable WordCounter::count(const Batch& batch) const {
  WordTable words;
  std::size_t begin = 0;
  for (const std::size_t end : batch.ends) {
    const auto text = std::string_view(batch.text).substr(0, end);
    while (begin < end) {
      const std::size_t next = splitter_.piece_end(text, begin);
      words.add(text.substr(begin, next - begin));
      begin = next;
    }
  }
  return words;
}

}  // namespace shoal
