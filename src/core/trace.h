// Timelines: what this rank does when. A thread of a rank traces while a Recorder of its own is in scope;
// elsewhere a span costs a test of a pointer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::trace {

// Rows of a rank in the picture.
enum class Lane : std::uint8_t {
  compute,    // steps, micro-batches, units, the optimizer: spans nest or follow each other
  waits,      // what the rank waits for, one after the other
  transfers,  // collectives from their call to their end: they overlap
};

// Seconds are those of the host's monotonic clock.
struct Event {
  Lane lane = Lane::compute;
  std::string category;  // "step", "forward", "backward", "optimizer", "collective", "wait", ...
  std::string name;      // "forward block.3", "all_reduce"
  double begin = 0, end = 0;
  std::vector<std::pair<std::string, std::string>> arguments;  // "micro-batch": "3", "purpose": "..."
};

// Lives longer than the spans that began in its scope.
class Recorder {
 public:
  explicit Recorder(bool on = true);  // from here on this thread records here
  ~Recorder();                        // and no more
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void set_on(bool on) { on_ = on; }
  bool on() const { return on_; }
  void add(Event event) { events_.push_back(std::move(event)); }
  const std::vector<Event>& events() const { return events_; }

 private:
  bool on_;
  Recorder* outer_;
  std::vector<Event> events_;
};

// The recorder of this thread that is on, or null.
Recorder* recorder();
double now();  // seconds

// From its construction to its destruction, on the compute lane. Micro-batches count from 0.
class Span {
 public:
  Span(std::string_view category, std::string_view name, int micro_batch = -1);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Recorder* recorder_;
  Event event_;
};

}  // namespace shoal::trace
