// Work of a backend that is the same every time: where it can be recorded, it is when it comes for the second
// time, and from then on played. The first time makes what takes memory or is chosen once.
#pragma once

#include "core/error.h"
#include "ops/backend.h"

namespace shoal {

class Repeated {
 public:
  // Without `record`, it is always done anew.
  Repeated(Backend& backend, bool record) : backend_(backend), record_(record && backend.records()) {}

  bool records() const { return record_; }

  template <typename Work>
  void operator()(const Work& work) {
    if (!recording_ && !(record_ && done_before_)) {
      work();
      done_before_ = true;
      return;
    }
    if (!recording_) recording_ = record(work);
    recording_->play();
  }

 private:
  template <typename Work>
  std::unique_ptr<RecordedWork> record(const Work& work) {
    backend_.begin_recording();
    try {
      work();
    } catch (...) {
      try {
        backend_.end_recording();
      } catch (const Error&) {  // of what was broken off
      }
      throw;
    }
    return backend_.end_recording();
  }

  Backend& backend_;
  bool record_, done_before_ = false;
  std::unique_ptr<RecordedWork> recording_;
};

}  // namespace shoal
