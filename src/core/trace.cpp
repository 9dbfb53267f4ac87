#include "core/trace.h"

#include <chrono>

namespace shoal::trace {
namespace {

// The innermost recorder of this thread.
thread_local Recorder* current = nullptr;

}  // namespace

Recorder::Recorder(bool on) : on_(on), outer_(std::exchange(current, this)) {}
Recorder::~Recorder() { current = outer_; }

Recorder* recorder() { return current && current->on() ? current : nullptr; }

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Span::Span(std::string_view category, std::string_view name, int micro_batch) : recorder_(recorder()) {
  if (!recorder_) return;
  event_.category = category;
  event_.name = name;
  if (micro_batch >= 0) event_.arguments.emplace_back("micro-batch", std::to_string(micro_batch));
  event_.begin = now();
}

Span::~Span() {
  if (!recorder_) return;
  event_.end = now();
  recorder_->add(std::move(event_));
}

}  // namespace shoal::trace
