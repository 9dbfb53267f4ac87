#include "data/batch_loader.h"

#include <algorithm>
#include <cassert>

#include "core/clock.h"
#include "core/error.h"
#include "core/trace.h"

namespace shoal {

BatchLoader::BatchLoader(const BatchSampler& sampler, const LoaderPlan& plan)
    : sampler_(sampler), plan_(plan) {
  assert(plan.micro_batch > 0 && plan.global_batch % plan.micro_batch == 0);
  total_ = (plan.last_step - plan.first_step) * plan.passes;
  const auto count = static_cast<std::size_t>(plan.micro_batch * sampler.block_size());
  ring_.resize(kDepth + 1);  // one more is in the caller's hands
  for (auto& slot : ring_) {
    slot.tokens.resize(count);
    slot.targets.resize(count);
  }
  thread_ = std::thread([this] { run(); });
}

BatchLoader::~BatchLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchLoader::fill(MicroBatch& batch, std::int64_t number) const {
  batch.step = plan_.first_step + number / plan_.passes;
  batch.index = plan_.first + number % plan_.passes * plan_.stride;
  batch.first_sample = batch.index * plan_.micro_batch;
  if (batch.first_sample < plan_.global_batch) {
    sampler_.fill(batch.step, batch.first_sample, plan_.micro_batch, plan_.global_batch, batch.tokens.data(),
                  batch.targets.data());
  } else {
    std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
    std::fill(batch.targets.begin(), batch.targets.end(), -1);
  }
}

void BatchLoader::run() try {
  for (std::int64_t i = 0; i < total_; ++i) {
    {
      std::unique_lock lock(mutex_);
      // The caller still reads the slot that it took last, so the limit is kDepth, not the size of the ring.
      changed_.wait(lock, [&] { return stop_ || filled_ - taken_ < static_cast<std::int64_t>(kDepth); });
      if (stop_) return;
    }
    fill(ring_[static_cast<std::size_t>(i) % ring_.size()], i);
    {
      const std::lock_guard lock(mutex_);
      ++filled_;
    }
    changed_.notify_all();
  }
} catch (...) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
  }
  changed_.notify_all();
}

const MicroBatch& BatchLoader::next() {
  const trace::Span span("data", "wait for data");
  std::unique_lock lock(mutex_);
  if (taken_ == total_) fail("the batch loader has no micro-batch after step {}", plan_.last_step - 1);
  const Stopwatch watch;
  changed_.wait(lock, [&] { return filled_ > taken_ || error_; });
  waited_ += watch.seconds();
  if (filled_ == taken_) std::rethrow_exception(error_);
  auto& slot = ring_[static_cast<std::size_t>(taken_) % ring_.size()];
  ++taken_;
  lock.unlock();
  changed_.notify_all();
  return slot;
}

}  // namespace shoal
