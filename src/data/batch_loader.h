// A thread that prepares the next micro-batches while the step computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/batch_sampler.h"

namespace shoal {

struct MicroBatch {
  std::int64_t step = 0;
  std::int64_t index = 0;                     // within the step's global batch
  std::int64_t first_sample = 0;              // index * micro_batch
  std::vector<std::int32_t> tokens, targets;  // [micro_batch, block_size]
};

// The micro-batches of one rank. In every step of [first_step, last_step) it gets `passes` micro-batches of
// the step's global_batch: number `first` and every stride-th after it. A micro-batch past the end of the
// global batch has targets of -1, which the loss ignores. micro_batch divides global_batch.
struct LoaderPlan {
  std::int64_t first_step = 0, last_step = 0;
  std::int64_t global_batch = 0, micro_batch = 0;
  std::int64_t first = 0, stride = 1, passes = 0;
};

class BatchLoader {
 public:
  static constexpr std::size_t kDepth = 4;  // micro-batches prepared ahead

  // Keeps a copy of the sampler; its token file must outlive the loader.
  BatchLoader(const BatchSampler& sampler, const LoaderPlan& plan);
  ~BatchLoader();  // drops the micro-batches that were not read
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next micro-batch in order, valid until the next call. Throws Error when the plan is exhausted.
  const MicroBatch& next();

  double waited_seconds() const { return waited_; }  // the total time that next() has waited

 private:
  void run();
  void fill(MicroBatch& batch, std::int64_t number) const;

  BatchSampler sampler_;
  LoaderPlan plan_;
  std::int64_t total_;  // micro-batches

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MicroBatch> ring_;
  std::int64_t filled_ = 0, taken_ = 0;  // counts since the start; slot = count % ring size
  std::exception_ptr error_;
  bool stop_ = false;
  double waited_ = 0;
  std::thread thread_;
};

}  // namespace shoal
