// Timelines: what this rank does when. A thread of a rank traces while a Recorder of its own is in scope;
// elsewhere a span costs a test of a pointer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::trace {

// Rows of a rank in the picture. Spans of one lane nest or follow each other.
enum class Lane : std::uint8_t {
  compute,        // units, micro-batches, the optimizer
  communication,  // collectives from start to end, and waits
};

// Seconds are those of the host's monotonic clock.
struct Event {
  Lane lane = Lane::compute;
  std::string name;      // "forward block.3", "all_reduce"
  std::string category;  // "forward", "backward", "optimizer", "collective", "wait", "step", ...
  double begin = 0, end = 0;
  std::vector<std::pair<std::string, std::string>> arguments;  // "micro-batch": "3", "purpose": "..."
};

class Recorder {
 public:
  Recorder();   // from here on this thread records here
  ~Recorder();  // and no more
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void set_on(bool on) { on_ = on; }  // pauses; it starts on
  bool on() const { return on_; }
  void add(Event event) { events_.push_back(std::move(event)); }
  const std::vector<Event>& events() const { return events_; }

 private:
  bool on_ = true;
  Recorder* outer_;
  std::vector<Event> events_;
};

// The recorder of this thread that is on, or null.
Recorder* recorder();
double now();  // seconds

// From its construction to its destruction, on the compute lane.
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
