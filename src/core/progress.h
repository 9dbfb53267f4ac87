// A progress line on standard error for anything that takes more than two seconds:
// a bar that is redrawn on a terminal, a plain line every few seconds otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "core/clock.h"

namespace shoal {

class Progress {
 public:
  // `total` <= 0 means unknown. `unit` is "B" for bytes (shown as MiB) or a noun such as "tokens".
  Progress(std::string title, double total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(double total) { total_ = total; }
  void start_at(double done) { done_ = begun_at_ = done; }  // what was done before; the rate is that of the rest
  void update(double done, const std::string& note = {});
  void clear();   // takes the bar away without a trace
  void finish();  // leaves one final line with the total, rate and time, if anything was shown

 private:
  void draw(bool last);

  std::string title_, unit_, note_;
  double total_, done_ = 0, begun_at_ = 0, last_drawn_ = 0;
  bool terminal_, shown_ = false, finished_ = false;
  Stopwatch watch_;
};

}  // namespace shoal
