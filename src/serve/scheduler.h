// Continuous batching: texts of all requests share the generator's places, and join and leave at any step.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "generate/generator.h"
#include "serve/completion.h"
#include "serve/metrics.h"

namespace shoal::serve {

class Scheduler {
 public:
  Scheduler(Generator& generator, Metrics& metrics) : generator_(generator), metrics_(metrics) {}

  // Queues the texts of a request behind those of earlier ones. From any thread.
  void submit(const std::shared_ptr<Completion>& completion);

  // Makes texts on the calling thread, the only one that touches the generator, until `stop`, which is asked
  // every few milliseconds while there is nothing to do, and after every step. Where the generator throws,
  // all requests fail, later ones too, and the exception goes on.
  void run(const std::function<bool()>& stop);

 private:
  struct Text {
    std::shared_ptr<Completion> completion;
    std::size_t choice;
  };
  void begin(const Text& text);
  void fail_all(const std::string& why);

  Generator& generator_;
  Metrics& metrics_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::deque<Text> waiting_;
  std::deque<std::weak_ptr<Completion>> running_;
  std::string failure_;
};

}  // namespace shoal::serve
