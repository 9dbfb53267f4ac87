#include "train/step_news.h"

#include <algorithm>

namespace shoal {
namespace {

// A signal is heard of so late at most, and so much is under way.
constexpr int kLongestLag = 16;

}  // namespace

StepNews::StepNews(Communicator& ranks, const Topology& topology)
    : ranks_(ranks),
      workers_(topology.workers),
      lag_(static_cast<std::size_t>(std::clamp(rounds_to_hear_of_all(topology), 1, kLongestLag))) {}

void StepNews::post(const Numbers& mine) {
  auto& post = posts_.emplace_back();
  post.sums = {mine.loss, mine.grad_norm, mine.skipped};
  std::ranges::copy(mine.signals, post.sums.begin() + 3);
  post.step = mine.step;
  post.record = mine.record;
  ranks_.set_purpose("losses of the workers");
  post.request = ranks_.all_reduce({post.sums.data(), DType::f64, {std::ssize(post.sums)}});
}

std::optional<StepNews::Numbers> StepNews::next(bool all) {
  if (posts_.empty() || (!all && posts_.size() <= lag_)) return std::nullopt;
  auto& post = posts_.front();
  post.request.wait();
  Numbers news{.loss = post.sums[0] / workers_,
               .grad_norm = post.sums[1] / workers_,
               .skipped = post.sums[2],
               .signals = {},
               .step = post.step,
               .record = post.record};
  std::copy(post.sums.begin() + 3, post.sums.end(), news.signals.begin());
  if (news.record) {
    news.record->loss = news.loss;
    news.record->grad_norm = news.grad_norm;
  }
  posts_.pop_front();
  return news;
}

}  // namespace shoal
