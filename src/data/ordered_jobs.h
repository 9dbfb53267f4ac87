// Runs jobs on several threads and delivers their results in order, in bounded memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace shoal {

// A job emits any number of chunks. `consume` gets the chunks of the first job, then of the second, and so
// on, in the thread that calls submit and finish. Chunk::bytes() is the memory that a chunk takes.
template <typename Chunk>
class OrderedJobs {
 public:
  // Waits while too many chunks are unconsumed; throws when the jobs are abandoned.
  using Emit = std::function<void(Chunk)>;
  using Job = std::function<void(const Emit&)>;

  OrderedJobs(int threads, std::function<void(Chunk&&)> consume)
      : consume_(std::move(consume)), most_jobs_(4 * static_cast<std::size_t>(threads)) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {  // the system may start fewer
      end_threads();
      throw;
    }
  }
  ~OrderedJobs() { end_threads(); }  // abandons unfinished jobs; call finish first
  OrderedJobs(const OrderedJobs&) = delete;
  OrderedJobs& operator=(const OrderedJobs&) = delete;

  // `weight`: the bytes that the job itself holds. Consumes the chunks that are ready, and waits while the
  // unfinished jobs are too many or too heavy. Rethrows the exception of an earlier job or of `consume`,
  // after the chunks before it.
  void submit(Job run, std::size_t weight) {
    while (consume_front(false)) {
    }
    while (!jobs_.empty() && (jobs_.size() >= most_jobs_ || weight_ + weight > kMostWeight))
      consume_front(true);
    weight_ += weight;
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::make_unique<State>(State{std::move(run), weight, {}, {}, false}));
      waiting_.push_back(jobs_.back().get());
    }
    changed_.notify_all();
  }
  // Consumes all chunks of all jobs. Throws as submit does.
  void finish() {
    while (consume_front(true)) {
    }
  }

 private:
  static constexpr std::size_t kMostWeight = std::size_t{128} << 20;
  // Bytes in unconsumed chunks of all jobs but the first.
  static constexpr std::size_t kMostHeld = std::size_t{128} << 20;

  struct State {
    Job run;
    std::size_t weight;
    std::deque<Chunk> chunks;
    std::exception_ptr error;
    bool done;
  };
  struct GivenUp {};

  void end_threads() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  bool consume_front(bool wait) {
    std::unique_lock lock(mutex_);
    if (jobs_.empty()) return false;
    auto& front = *jobs_.front();
    const auto ready = [&] { return !front.chunks.empty() || front.done; };
    if (!wait && !ready()) return false;
    changed_.wait(lock, ready);
    if (front.chunks.empty()) {
      if (front.error) std::rethrow_exception(front.error);
      weight_ -= front.weight;
      jobs_.pop_front();
      lock.unlock();
      changed_.notify_all();
      return true;
    }
    auto chunk = std::move(front.chunks.front());
    front.chunks.pop_front();
    held_ -= chunk.bytes();
    lock.unlock();
    changed_.notify_all();
    consume_(std::move(chunk));
    return true;
  }

  // The first job is never blocked by the others' chunks, so there is no deadlock.
  void emit(State& job, Chunk chunk) {
    const auto bytes = chunk.bytes();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return stop_ || (jobs_.front().get() == &job ? job.chunks.size() < 2 : held_ + bytes <= kMostHeld);
      });
      if (stop_) throw GivenUp{};
      held_ += bytes;
      job.chunks.push_back(std::move(chunk));
    }
    changed_.notify_all();
  }

  void work() {
    for (;;) {
      State* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
        if (stop_) return;
        job = waiting_.front();
        waiting_.pop_front();
      }
      std::exception_ptr error;
      try {
        job->run([&](Chunk chunk) { emit(*job, std::move(chunk)); });
      } catch (const GivenUp&) {
        return;
      } catch (...) {
        error = std::current_exception();
      }
      job->run = nullptr;  // frees what it holds
      {
        const std::lock_guard lock(mutex_);
        job->error = error;
        job->done = true;
      }
      changed_.notify_all();
    }
  }

  std::function<void(Chunk&&)> consume_;
  std::size_t most_jobs_;
  std::size_t weight_ = 0;  // used by the caller's thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<State>> jobs_;  // in order; consumed from the front
  std::deque<State*> waiting_;
  std::size_t held_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shoal
