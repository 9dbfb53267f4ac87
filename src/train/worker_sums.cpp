#include "train/worker_sums.h"

#include <algorithm>

namespace shoal {
namespace {

// Bounds of the delay of a signal, and of the all-reduces under way.
constexpr std::int64_t kLongestLag = 16, kMostOfRound = 4;

}  // namespace

WorkerSums::WorkerSums(Communicator& ranks, const Topology& topology, std::int64_t interval)
    : ranks_(ranks),
      workers_(topology.workers),
      lag_(static_cast<std::size_t>(std::clamp<std::int64_t>(
          rounds_to_hear_of_all(topology) * std::min(interval, kMostOfRound), 1, kLongestLag))) {}

void WorkerSums::post(const Numbers& mine) {
  auto& post = posts_.emplace_back();
  post.sums = {mine.loss, mine.grad_norm, mine.skipped};
  std::ranges::copy(mine.signals, post.sums.begin() + 3);
  post.step = mine.step;
  post.record = mine.record;
  ranks_.set_purpose("losses of the workers");
  post.request = ranks_.all_reduce({post.sums.data(), DType::f64, {std::ssize(post.sums)}});
}

std::optional<WorkerSums::Numbers> WorkerSums::next(bool all) {
  if (posts_.empty() || (!all && posts_.size() <= lag_)) return std::nullopt;
  auto& post = posts_.front();
  post.request.wait();
  Numbers means{.loss = post.sums[0] / workers_,
                .grad_norm = post.sums[1] / workers_,
                .skipped = post.sums[2],
                .signals = {},
                .step = post.step,
                .record = post.record};
  std::copy(post.sums.begin() + 3, post.sums.end(), means.signals.begin());
  if (means.record) {
    means.record->loss = means.loss;
    means.record->grad_norm = means.grad_norm;
  }
  posts_.pop_front();
  return means;
}

}  // namespace shoal
